"""The types that resident K and V cells can have, and which pairs of them run well where."""

from __future__ import annotations

from dataclasses import dataclass

from pinfold.errors import UnsupportedModeError

__all__ = ["KVTypes", "is_block_type", "parse_kv_types", "row_bytes", "type_name", "type_number"]

# name -> (ggml type number, bytes per block, values per block)
_TYPES = {
    "f32": (0, 4, 1),
    "f16": (1, 2, 1),
    "bf16": (30, 2, 1),
    "q8_0": (8, 34, 32),
    "q5_1": (7, 24, 32),
    "q5_0": (6, 22, 32),
    "q4_1": (3, 20, 32),
    "q4_0": (2, 18, 32),
}


@dataclass(frozen=True, slots=True)
class KVTypes:
    """Names of the types of K and V, such as ``q8_0`` and ``q4_0``."""

    k: str
    v: str

    @property
    def numbers(self) -> tuple[int, int]:
        """ggml's type numbers of K and V."""
        return _TYPES[self.k][0], _TYPES[self.v][0]

    @property
    def quantized(self) -> bool:
        """Whether either is a block type."""
        return _TYPES[self.k][2] > 1 or _TYPES[self.v][2] > 1

    def bytes_of(self, k_values: int, v_values: int) -> int:
        """Bytes that so many values of K and of V take."""
        _, k_bytes, k_block = _TYPES[self.k]
        _, v_bytes, v_block = _TYPES[self.v]
        return k_values * k_bytes // k_block + v_values * v_bytes // v_block

    def __str__(self) -> str:
        return f"{self.k}/{self.v}"


def is_block_type(name: str) -> bool:
    """Whether values of the type are rounded in blocks."""
    return _TYPES[name][2] > 1


def type_name(number: int) -> str | None:
    """The name of ggml's type `number`, None if no cache has it."""
    return next((name for name, (known, _, _) in _TYPES.items() if known == number), None)


def type_number(name: str) -> int:
    """ggml's number of the type called `name`."""
    return _TYPES[name][0]


def row_bytes(name: str, values: int) -> int:
    """Bytes that `values` values of the type take; they fill whole blocks or more than that is counted."""
    _, size, block = _TYPES[name]
    return -(-values // block) * size


def parse_kv_types(text: str, *, head_size: int, on_gpu: bool) -> KVTypes:
    """The pair that `text` names: one type for both, or ``K/V``; ``auto`` is f16, and sessions are folded at rest.

    Raises:
        UnsupportedModeError: an unknown type, a head size that its blocks do not divide, or a pair that this device
            would run on the CPU behind the user's back.
    """
    names = ("f16" if text.lower() == "auto" else text.lower()).split("/")
    if len(names) == 1:
        names *= 2
    if len(names) != 2 or any(name not in _TYPES for name in names):
        msg = f"kv_resident={text!r} is no pair of KV types. Give one of {', '.join(_TYPES)}, or two as 'q8_0/q4_0'."
        raise UnsupportedModeError(msg)
    types = KVTypes(names[0], names[1])
    if types.quantized and head_size % 32:
        msg = f"kv_resident={text!r} needs a head size that 32 divides; this model's is {head_size}. Use 'f16'."
        raise UnsupportedModeError(msg)
    if on_gpu and types.quantized and types.k != types.v:
        msg = (
            f"kv_resident={text!r}: on a GPU, llama.cpp computes unequal quantized K and V on the CPU. "
            f"Use {names[0]!r} for both."
        )
        raise UnsupportedModeError(msg)
    return types
