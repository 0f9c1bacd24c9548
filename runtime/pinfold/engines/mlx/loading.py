"""A model's folder and options -> a loaded model on its device, and the facts about both."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinfold.draft_modes import BLOCKS, parse_draft
from pinfold.engines.base import ModelInfo
from pinfold.engines.memory import Fitted, fit_context, free_memory
from pinfold.engines.mlx.blocks.drafter import BlockDrafter
from pinfold.engines.mlx.blocks.loading import join_drafter
from pinfold.engines.mlx.caches import Opened, Slot, open_caches, plan_caches
from pinfold.engines.mlx.device import Device, choose_device, limit_memory, whole_cells
from pinfold.engines.mlx.folder import ModelFolder, read_folder
from pinfold.engines.mlx.heads import plan_sections
from pinfold.engines.mlx.kv_types import CELLS
from pinfold.engines.mlx.layout import Layout, State
from pinfold.engines.mlx.library import load_library
from pinfold.engines.mlx.rehearsal import Shapes, rehearse
from pinfold.engines.mlx.resident import Resident, choose_resident
from pinfold.engines.mlx.together import runs_together
from pinfold.engines.mlx.tokenizer import FolderTokenizer
from pinfold.errors import ModelFormatError, UnsupportedModeError
from pinfold.options import RuntimeOptions

__all__ = ["Loaded", "load"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that now belongs to the caller, who calls `release` at the end. `leaves` are the slots that are no group,
    `make` gives empty caches for a sequence, calling its argument after each attention layer."""

    mx: Any
    model: Any
    tokenizer: FolderTokenizer
    info: ModelInfo
    device: Device
    compute: str
    leaves: tuple[Slot, ...]
    make: Callable[[Callable[[Any, Any], None]], Opened]
    layout: Layout
    resident: Resident
    together: bool
    apart_because: str
    n_ctx: int
    n_cells: int
    max_tokens: int
    max_rows: int
    context_reason: str
    facets: dict[str, str]
    drafter: BlockDrafter | None
    release: Callable[[], None]

    @property
    def trims(self) -> bool:
        """Whether a sequence can be cut: recurrent state cannot."""
        return all(leaf.kind != "recurrent" for leaf in self.leaves)

    @property
    def attends(self) -> bool:
        """Whether any layer has cells."""
        return bool(self.layout.sections or self.layout.packed)


def load(path: Path, name: str, options: RuntimeOptions) -> Loaded:
    """Loads the model.

    Raises:
        EngineUnavailableError: mlx or mlx-lm is missing or broken.
        ModelNotFoundError, ModelFormatError: no such folder, or none that mlx-lm can load.
        UnsupportedModeError: an architecture, a cache or an option that this engine does not have.
    """
    folder = read_folder(path)
    mx = load_library()
    device = choose_device(mx, options)
    release = limit_memory(mx, device)
    try:
        return _load(mx, folder, name, options, device, release)
    except BaseException:
        release()
        raise


def _load(
    mx: Any, folder: ModelFolder, name: str, options: RuntimeOptions, device: Device, release: Callable[[], None]
) -> Loaded:
    tokenizer = FolderTokenizer(folder)
    model = _load_model(mx, folder, device)
    compute = _compute_type(mx, model)
    slots = plan_caches(model)
    whole = whole_cells(compute, device)
    shapes = rehearse(mx, model, lambda: open_caches(mx, slots, getattr(mx, CELLS[whole]), _ignore), tokenizer.n_vocab)
    tokenizer.n_vocab = shapes.n_vocab
    resident = choose_resident(mx, model, tokenizer, slots, shapes, whole, device, options)
    network, drafter = _with_drafter(mx, model, name, options, device)
    slots = resident.slots + (Slot("drafter"),) * (drafter.n_layers if drafter else 0)
    cells = getattr(mx, CELLS[resident.types.cells])

    def make(on_layer: Callable[[Any, Any], None]) -> Opened:
        return open_caches(mx, slots, cells, on_layer)

    if drafter is not None:
        shapes = rehearse(mx, network, lambda: make(_ignore), tokenizer.n_vocab)
    together, why = runs_together(mx, network, slots, lambda: make(_ignore), tokenizer.n_vocab)
    layout = _layout(network, folder, slots, resident, shapes)
    info = _describe(model, folder, name, tokenizer)
    fitted = _context_length(options, info, max(layout.bytes_per_token, 1), device)
    max_tokens = -(-(options.prefill_chunk + options.max_sequences) // 64) * 64
    return Loaded(
        mx=mx,
        model=network,
        tokenizer=tokenizer,
        info=info,
        device=device,
        compute=compute,
        leaves=tuple(leaf for slot in slots for leaf in slot.leaves()),
        make=make,
        layout=layout,
        resident=resident,
        together=together,
        apart_because=why,
        n_ctx=fitted.n_ctx,
        n_cells=-(-(options.kv_cells or 2 * fitted.n_ctx) // 256) * 256,
        max_tokens=max_tokens,
        max_rows=min(max_tokens, max(64, options.max_sequences)),
        context_reason=fitted.reason,
        facets=_facets(info, device, compute, layout, resident) | ({"drafter": drafter.identity} if drafter else {}),
        drafter=drafter,
        release=release,
    )


def _load_model(mx: Any, folder: ModelFolder, device: Device) -> Any:
    from mlx_lm.utils import load_model

    try:
        model, _ = load_model(folder.path, lazy=True)
    except ValueError as e:
        if "not supported" in str(e):
            msg = (
                f"mlx-lm has no model of the type {folder.architecture!r}. Upgrade mlx-lm, or use a GGUF file of the "
                f"same model: it runs on llama.cpp."
            )
            raise UnsupportedModeError(msg) from e
        raise _no_model(folder, e) from e
    except (RuntimeError, TypeError, KeyError, AttributeError, OSError) as e:
        raise _no_model(folder, e) from e
    if device.name == "cpu":
        model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def _with_drafter(
    mx: Any, model: Any, name: str, options: RuntimeOptions, device: Device
) -> tuple[Any, BlockDrafter | None]:
    mode = parse_draft(options.draft)
    if mode.kind not in BLOCKS:
        return model, None
    return join_drafter(mx, model, name, mode, mx.float32 if device.name == "cpu" else None)


def _no_model(folder: ModelFolder, error: Exception) -> ModelFormatError:
    return ModelFormatError(
        f"mlx-lm cannot load {folder.path.name}: {error}. Check that the download is whole and the model is supported."
    )


def _compute_type(mx: Any, model: Any) -> str:
    from mlx.utils import tree_flatten

    floats = (array.dtype for _, array in tree_flatten(model.parameters()) if mx.issubdtype(array.dtype, mx.floating))
    return str(next(floats, mx.float32)).rpartition(".")[2]


def _ignore(*_: Any) -> None:
    pass


def _layout(model: Any, folder: ModelFolder, slots: tuple[Slot, ...], resident: Resident, shapes: Shapes) -> Layout:
    states = tuple(None if known is None else State(*known) for known in shapes.recurrent)
    sections = plan_sections(model, folder, slots, shapes)
    return Layout(resident.types.cells, sections, states, resident.layers)


def _describe(model: Any, folder: ModelFolder, name: str, tokenizer: FolderTokenizer) -> ModelInfo:
    from mlx_lm.utils import get_total_parameters

    parameters = int(get_total_parameters(model))
    return ModelInfo(
        name=name,
        architecture=folder.architecture,
        identity=folder.identity,
        n_vocab=tokenizer.n_vocab,
        n_ctx_train=int(folder.number("max_position_embeddings")),
        n_layer=len(model.layers),
        chat_template=folder.chat_template,
        bos_token=tokenizer.bos_text,
        eos_token=tokenizer.eos_text,
        parameters=parameters,
        size_bytes=folder.size_bytes,
        body_parameters=max(parameters - tokenizer.n_vocab * int(folder.number("hidden_size")), 0),
    )


def _context_length(options: RuntimeOptions, info: ModelInfo, bytes_per_token: int, device: Device) -> Fitted:
    if options.n_ctx != "auto":
        n_ctx = min(options.n_ctx, info.n_ctx_train or options.n_ctx)
        return Fitted(
            n_ctx, "as set" if n_ctx == options.n_ctx else f"cut to the {n_ctx} that the model was trained for"
        )
    if device.name == "cuda":
        msg = "n_ctx='auto' measures main memory, and the KV goes to the GPU's. Give n_ctx a number."
        raise UnsupportedModeError(msg)
    return fit_context(free_memory(), bytes_per_token, info.n_ctx_train, options.kv_cells)


def _facets(info: ModelInfo, device: Device, compute: str, layout: Layout, resident: Resident) -> dict[str, str]:
    """Everything besides the tokens that shapes the KV."""
    return {
        "engine": "mlx",
        "version": f"mlx {importlib.metadata.version('mlx')}, mlx-lm {importlib.metadata.version('mlx-lm')}",
        "weights": info.identity,
        "kv types": str(resident.types),
        "device": device.name,
        "computed in": compute,
        "layout": layout.head(0).hex(),
    }
