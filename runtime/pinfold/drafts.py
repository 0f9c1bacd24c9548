"""The drafting that comes of `draft=`."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pinfold.draft_modes import BLOCKS, DraftMode, parse_draft
from pinfold.engines.base import BlockDrafts, Engine
from pinfold.errors import StoreError, UnsupportedModeError
from pinfold.keeping import recipes_folder, store_root
from pinfold.opening import open_engine
from pinfold.options import RuntimeOptions

if TYPE_CHECKING:
    from pinfold.decoding.drafters.block import BlockModel
    from pinfold.decoding.drafters.model import SmallModel
    from pinfold.decoding.drafting import Drafting
    from pinfold.sessions.manager import SessionManager
    from pinfold.store.recipes import RecipeFiles

__all__ = ["open_drafting"]

log = logging.getLogger("pinfold.drafts")

_NEVER_CUT = "a wrong guess could not be taken back: this model's state cannot be cut"


def open_drafting(options: RuntimeOptions, engine: Engine, manager: SessionManager) -> Drafting | None:
    """Drafting for `engine`, with the draft model's weights loaded; None where it is off. Runs on the engine's thread.

    Raises:
        UnsupportedModeError: it was asked for by name and the model's state cannot be cut, the draft model has
            another vocabulary, or the engine runs no such drafter.
        ModelError, EngineError: the draft model cannot be loaded.
    """
    mode = parse_draft(options.draft)
    if mode.kind == "off":
        return None
    if engine.capabilities.trim != "any" and not engine.capabilities.undo:
        if mode.kind == "auto":
            return None
        msg = f"draft={options.draft!r}: {_NEVER_CUT}. Use draft='auto' or 'off'."
        raise UnsupportedModeError(msg)
    from pinfold.decoding.costs import ForwardCosts
    from pinfold.decoding.drafters.history import Answers
    from pinfold.decoding.drafting import Drafting
    from pinfold.decoding.trial import CostTrial

    known, keep = _cost_notes(options, engine)
    costs = ForwardCosts(engine.capabilities.device, known)
    trial = None if known or engine.capabilities.device == "none" else CostTrial(engine, manager.space, costs)
    answers = Answers() if options.draft_history else None
    blocks = _open_blocks(mode, engine)
    return Drafting(engine, costs, trial, keep, _open_small(mode, options, engine), answers, blocks)


def _open_blocks(mode: DraftMode, engine: Engine) -> BlockModel | None:
    """The drafter that the engine was opened with, if it was to be."""
    if mode.kind not in BLOCKS:
        return None
    from pinfold.decoding.drafters.block import BlockModel

    if isinstance(engine, BlockDrafts) and engine.block_size:
        return BlockModel(engine, engine, mode.kind)
    msg = (
        f"draft='{mode.kind}:{mode.model}': the {engine.capabilities.engine} engine runs no {mode.kind} checkpoints. "
        f"Use a model in MLX format, or draft='auto' or 'model:PATH'."
    )
    raise UnsupportedModeError(msg)


def _open_small(mode: DraftMode, options: RuntimeOptions, engine: Engine) -> SmallModel | None:
    if mode.kind != "model":
        return None
    from pinfold.decoding.drafters.model import SmallModel, check_vocabulary

    small_options = options.model_copy(
        update={"draft": "off", "max_sequences": 8, "n_ctx": engine.capabilities.n_ctx, "kv_cells": None}
    )
    small = open_engine(mode.model, small_options).open()
    try:
        check_vocabulary(engine, small)
        if small.capabilities.trim != "any":
            msg = f"{mode.model} cannot draft: {_NEVER_CUT}. Use another draft model."
            raise UnsupportedModeError(msg)
    except UnsupportedModeError:
        small.close()
        raise
    return SmallModel(small, engine.tokenizer.n_vocab)


def _cost_notes(
    options: RuntimeOptions, engine: Engine
) -> tuple[Mapping[int, float], Callable[[Mapping[int, float]], None]]:
    """What an earlier process on this machine measured, and how to keep what this one does."""
    root = store_root(options, engine.capabilities.engine)
    if root is None:
        return {}, lambda _: None
    from pinfold.store.recipes import RecipeFiles

    files = RecipeFiles(recipes_folder(root))
    machine = (platform.node(), platform.machine(), os.cpu_count(), options.n_threads, engine.capabilities.device)
    name = f"forward costs {machine} {engine.capabilities.fingerprint}"

    def keep(costs: Mapping[int, float]) -> None:
        try:
            files.write(name, json.dumps(costs).encode())
        except StoreError as e:
            log.info("what forwards cost was not kept: %s", e)

    return _read_costs(files, name), keep


def _read_costs(files: RecipeFiles, name: str) -> dict[int, float]:
    data = files.read(name)
    try:
        found = json.loads(data) if data is not None else {}
        costs = {int(rows): float(seconds) for rows, seconds in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {rows: seconds for rows, seconds in costs.items() if 0 < seconds < 60}
