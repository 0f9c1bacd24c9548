"""What each way of storing a model's KV costs and saves, on texts that calibration never saw.

Prompts are taken one after the other, so that memory holds the KV and the distributions of one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pinfold.engines.base import Engine
from pinfold.errors import InvalidRequestError
from pinfold.kv.codec import EXACT, fold, unfold
from pinfold.kv.recipe import LADDER, PRESETS, Recipe, Rung
from pinfold.quality.schemes import NOISE, REFERENCES, Scheme
from pinfold.quality.texts import HELD_OUT, sample_texts
from pinfold.quality.trial import Divergence, Seq, Trial, take_snapshot

__all__ = ["QualityReport", "Row", "measure"]

T = TypeVar("T")
Steps = Generator[None, None, T]

_FLOOR = "floor"
# Restores of a prompt that are timed: one takes so little that whatever else runs on the machine shows in it.
_RESTORES = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One way of storing KV.

    Attributes:
        bits: stored for each 16 bits of the f16 cache, everything included; for references what they say of themselves.
        times_smaller: than the f16 cache.
        kld_mean, kld_p99, kld_p999, kld_max: Kullback-Leibler divergence of a token's distribution, in nats.
        top1: part of the tokens whose likeliest successor stayed the same.
        fold_ms, restore_ms: for one prefix, medians; None for references, which are not stored.
    """

    bits: float
    times_smaller: float
    kld_mean: float
    kld_p99: float
    kld_p999: float
    kld_max: float
    top1: float
    fold_ms: float | None = None
    restore_ms: float | None = None


@dataclass(frozen=True, slots=True)
class QualityReport:
    """All rows of a model.

    Attributes:
        prefix_tokens: of each prompt's stored KV; `evaluated_tokens` is how many followed, over all prompts.
        prefill_s: median seconds of computing one prefix cold.
        floor: a change that no cache could avoid: what rounding in the engine alone makes of it.
        reference: what others store, by name.
        presets: by name, each on the rung in `rungs` (``exact`` for none).
        ladder: all rungs, from fine to coarse.
        notes: in words: presets that their gate moved, sections that were kept without loss.
    """

    model: str
    prefix_tokens: int
    evaluated_tokens: int
    prefill_s: float
    floor: Row
    reference: Mapping[str, Row]
    presets: Mapping[str, Row]
    ladder: Mapping[str, Row]
    rungs: Mapping[str, str]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, for `json.dumps`."""
        return asdict(self)


@dataclass(slots=True)
class _Found:
    """What was measured of one way so far, prompt by prompt."""

    divergence: list[Divergence] = field(default_factory=list)
    stored: int = 0
    raw: int = 0
    fold_s: list[float] = field(default_factory=list)
    restore_s: list[float] = field(default_factory=list)

    def row(self, nominal_bits: float | None = None) -> Row:
        bits = nominal_bits if nominal_bits is not None else 16 * self.stored / self.raw
        tokens = Divergence.join(self.divergence)
        return Row(
            bits=bits,
            times_smaller=16 / bits,
            kld_mean=tokens.mean,
            kld_p99=tokens.quantile(0.99),
            kld_p999=tokens.quantile(0.999),
            kld_max=tokens.quantile(1.0),
            top1=tokens.top1,
            fold_ms=_median_ms(self.fold_s),
            restore_ms=_median_ms(self.restore_s),
        )


def measure(
    engine: Engine,
    new_seq: Seq,
    recipe: Recipe,
    *,
    prefix: int = 2000,
    tokens: int = 256,
    texts: Sequence[str] = tuple(HELD_OUT),
    ladder: Sequence[Rung] = LADDER,
    progress: Callable[[float], None] | None = None,
) -> Steps[QualityReport]:
    """The report of the engine's model. Rests between forwards; `progress` is called with the part done, 0 to 1.

    Args:
        prefix: tokens of each prompt that are stored; `tokens` that follow are evaluated.
        texts: names in `HELD_OUT`.
        ladder: rungs that are measured besides those of the presets.

    Raises:
        InvalidRequestError: a text is shorter than `prefix` and `tokens` together.
    """
    prompts = [_prompt(engine, name, prefix + tokens) for name in texts]
    rungs = {preset: _rung_of(recipe, preset) for preset in (EXACT, *PRESETS)}
    schemes: dict[str, Scheme] = {_FLOOR: NOISE, **REFERENCES}
    codecs = {_name(rung): rung for rung in (None, *ladder, *rungs.values())}
    found = {name: _Found() for name in (*schemes, *codecs)}
    recipe.digest()  # computed once for a recipe, so not counted in the first fold
    prefills: list[float] = []
    notes = list(recipe.notes.values())
    for number, prompt in enumerate(prompts):
        snapshot, seconds = yield from _clocked(take_snapshot(engine, new_seq, prompt[:prefix]))
        prefills.append(seconds)
        trial = Trial(engine, new_seq, engine.close_snapshot(snapshot), prefix, prompt[prefix:])
        yield from trial.observe()
        for place, (name, into) in enumerate(found.items()):
            if name in schemes:
                into.divergence.append((yield from trial.compare(schemes[name].apply(trial.snapshot))))
            else:
                notes += yield from _try_codec(engine, new_seq, trial, recipe, codecs[name], into)
            if progress is not None:
                progress((number + (place + 1) / len(found)) / len(prompts))
    rows = {name: into.row(schemes[name].bits if name in schemes else None) for name, into in found.items()}
    return QualityReport(
        model=engine.capabilities.model.name,
        prefix_tokens=prefix,
        evaluated_tokens=tokens * len(prompts),
        prefill_s=statistics.median(prefills),
        floor=rows[_FLOOR],
        reference={name: rows[name] for name in REFERENCES},
        presets={preset: rows[_name(rung)] for preset, rung in rungs.items()},
        ladder={rung.name: rows[rung.name] for rung in ladder},
        rungs={preset: _name(rung) for preset, rung in rungs.items()},
        notes=tuple(dict.fromkeys(notes)),
    )


def _prompt(engine: Engine, name: str, length: int) -> list[int]:
    tokens = engine.tokenizer.encode(sample_texts({name: HELD_OUT[name]})[name])
    if len(tokens) < length:
        msg = (
            f"The sample text {name!r} has {len(tokens)} tokens of this model. Ask for that many at most, not {length}."
        )
        raise InvalidRequestError(msg)
    return tokens[:length]


def _rung_of(recipe: Recipe, preset: str) -> Rung | None:
    place = recipe.rungs.get(preset, -1)
    return LADDER[place] if place >= 0 else None


def _name(rung: Rung | None) -> str:
    return rung.name if rung is not None else EXACT


def _try_codec(
    engine: Engine, new_seq: Seq, trial: Trial, recipe: Recipe, rung: Rung | None, into: _Found
) -> Steps[tuple[str, ...]]:
    """Folds the prompt on `rung` and restores it, both timed, and compares. Returns the fold's notes."""
    snapshot = trial.snapshot
    began = time.perf_counter()
    folded = fold(snapshot, recipe, rung)
    into.fold_s.append(time.perf_counter() - began)
    into.stored += len(folded.data)
    into.raw += folded.raw_bytes
    changed = snapshot
    for _ in range(_RESTORES):
        began = time.perf_counter()
        changed = unfold(folded.data, lambda _: recipe, most_bytes=2 * folded.raw_bytes + (1 << 20))
        state = engine.close_snapshot(changed)
        seq = new_seq(changed.tokens)
        try:
            engine.restore(seq, state, changed.tokens)
            into.restore_s.append(time.perf_counter() - began)
        finally:
            engine.drop(seq)
        yield
    into.divergence.append((yield from trial.compare(changed)))
    return folded.notes


def _clocked(steps: Steps[T]) -> Steps[tuple[T, float]]:
    """What `steps` returns, and the seconds that it worked; its rests are not counted."""
    worked = 0.0
    with closing(steps):
        while True:
            began = time.perf_counter()
            try:
                next(steps)
            except StopIteration as stop:
                return stop.value, worked + time.perf_counter() - began
            worked += time.perf_counter() - began
            yield


def _median_ms(seconds: Sequence[float]) -> float | None:
    return 1e3 * statistics.median(seconds) if seconds else None
