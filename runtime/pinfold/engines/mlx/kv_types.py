"""The types that resident K and V cells can have on MLX, and when `auto` quantizes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinfold.errors import UnsupportedModeError

__all__ = ["AUTO", "BITS", "CELLS", "LADDER", "KVTypes", "Steps", "group_size", "parse_kv_types", "pays", "rotates"]

AUTO = "auto"
CELLS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
BITS = (2, 3, 4, 5, 6, 8)
LADDER = ("q8/q8", "q8/q4", "q8/q3", "q6/q4", "q6/q3", "q5/q3")
"""Steps in use, each smaller than the one before; `auto` takes the second."""

_DEFAULT = "q8/q4"
_GROUPS = (64, 32)
# Of the memory that is free for cells: below, attention over whole cells is the faster.
_LARGE = 0.25
# Odd factors of the sizes that a Hadamard transform is known for.
_ROTATED = (1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Steps:
    """How rows of a head are packed: `bits` a channel, with one step and one offset for each `group` channels."""

    bits: int
    group: int


@dataclass(frozen=True, slots=True)
class KVTypes:
    """`cells` is the type of cells that are whole; `k_bits` and `v_bits` are 0 where all are."""

    cells: str
    k_bits: int = 0
    v_bits: int = 0

    @property
    def quantized(self) -> bool:
        """Whether layers of full attention keep packed cells."""
        return bool(self.k_bits)

    def __str__(self) -> str:
        return f"q{self.k_bits}/q{self.v_bits}" if self.quantized else self.cells


def parse_kv_types(text: str, whole: str) -> KVTypes:
    """The types that `text` names: one of `CELLS`, or ``q8/q4`` and the like; `whole` is what ``f16`` means here.

    llama.cpp's names ``q8_0``, ``q5_0`` and ``q4_0`` are taken for the same numbers of bits.

    Raises:
        UnsupportedModeError: a type that this engine does not have.
    """
    name = _DEFAULT if text.lower() == AUTO else text.lower()
    if name in CELLS:
        return KVTypes(whole if name == "f16" else name)
    bits = [_bits(part) for part in name.split("/")]
    bits = bits * 2 if len(bits) == 1 else bits
    if len(bits) != 2 or not all(bits):
        msg = (
            f"kv_resident={text!r} is not a type of cells that the MLX engine has. Give one of {', '.join(CELLS)}, "
            f"or the bits of keys and values such as {', '.join(LADDER)}."
        )
        raise UnsupportedModeError(msg)
    return KVTypes(whole, *bits)


def group_size(size: int) -> int | None:
    """Channels in a group for heads of `size` channels; None if they cannot be packed."""
    return next((group for group in _GROUPS if size % group == 0), None)


def rotates(size: int) -> bool:
    """Whether the channels of heads of `size` are mixed before they are packed, which spreads what stands out."""
    return size // (size & -size) in _ROTATED


def pays(device: str, whole_bytes: int, free_bytes: int | None) -> tuple[bool, str]:
    """Whether ``auto`` quantizes a cache whose whole cells take `whole_bytes`, and why."""
    if device == "cpu":
        return False, "whole cells are the faster on a CPU"
    if free_bytes is None:
        return False, "the device's memory is not known"
    share = whole_bytes / max(free_bytes, 1)
    why = f"whole cells would take {share:.0%} of the memory that the device has free"
    return share > _LARGE, why


def _bits(name: str) -> int:
    found = re.fullmatch(r"q([2-8])(?:_0)?", name)
    bits = int(found.group(1)) if found else 0
    return bits if bits in BITS else 0
