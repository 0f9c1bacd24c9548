"""Which attention layers make a section of a snapshot, and how their keys were turned by position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinfold.engines.mlx.caches import Slot
from pinfold.engines.mlx.folder import ModelFolder
from pinfold.engines.mlx.layout import SectionLayout
from pinfold.engines.mlx.rehearsal import Shapes
from pinfold.errors import UnsupportedModeError
from pinfold.kv.rope import fits
from pinfold.kv.snapshot import Heads, Rope

__all__ = ["plan_sections"]


def plan_sections(
    model: Any, folder: ModelFolder, slots: tuple[Slot, ...], shapes: Shapes
) -> tuple[SectionLayout, ...]:
    """Layers of whole cells, those of the same reach and heads together, in the order in which they are first met.

    A description of the turning that is not right costs bits when keys are folded, never exactness.

    Raises:
        UnsupportedModeError: a layer whose keys or values have no channels.
    """
    groups: dict[tuple[str, Heads], list[int]] = {}
    for number, (slot, rope) in enumerate(_attention(model, folder, slots)):
        if slot.packing is not None:
            continue
        _, k_size, _, v_size = shapes.attention[number]
        if not k_size or not v_size:
            msg = f"Attention {number} of this model keeps no values. Use a GGUF file of the same model."
            raise UnsupportedModeError(msg)
        heads = Heads(k_size, v_size, rope)
        heads = heads if fits(heads) else Heads(k_size, v_size, None)
        groups.setdefault((slot.kind, heads), []).append(number)
    return tuple(
        SectionLayout(
            heads,
            tuple(layers),
            tuple(shapes.attention[n][0] for n in layers),
            tuple(shapes.attention[n][2] for n in layers),
        )
        for (_, heads), layers in groups.items()
    )


def _attention(model: Any, folder: ModelFolder, slots: tuple[Slot, ...]) -> Iterator[tuple[Slot, Rope | None]]:
    """Each attention cache with the rope of its layer; None where layers and caches do not correspond."""
    layers = list(model.layers) if len(model.layers) == len(slots) else [None] * len(slots)
    for slot, layer in zip(slots, layers, strict=True):
        leaves = slot.leaves()
        rope = _rope(layer, folder) if layer is not None and len(leaves) == 1 else None
        yield from ((leaf, rope) for leaf in leaves if leaf.kind != "recurrent")


def _rope(layer: Any, folder: ModelFolder) -> Rope | None:
    for _, module in layer.named_modules():
        width = getattr(module, "dims", None)
        if "RoPE" in type(module).__name__ and isinstance(width, int):
            base = getattr(module, "base", None) or folder.number("rope_theta", 10_000.0)
            scale = getattr(module, "scale", 1.0)
            return Rope(float(base), float(scale), width, not getattr(module, "traditional", False))
    return None
