"""The whole calibration of a model: axes from sample texts, steps by measured sensitivity, rungs that pass the gate.

Takes under a minute for the embedded model; a generator that rests between forwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import Engine
from pinfold.kv.calibration import learn
from pinfold.kv.codec import fold, unfold
from pinfold.kv.recipe import LADDER, PRESETS, Recipe, Rung
from pinfold.kv.snapshot import Plane, Section, Snapshot
from pinfold.quality.schemes import NOISE, REFERENCES, change_planes
from pinfold.quality.texts import CALIBRATION, GATE, sample_texts
from pinfold.quality.trial import Divergence, Seq, Trial, prepare, take_snapshot

__all__ = ["GATES", "calibrate", "folded"]

F32 = NDArray[np.float32]
log = logging.getLogger("pinfold.quality")

GATES = {"balanced": "k8v4", "compact": "k8v3"}
"""preset -> the scheme whose mean divergence, on the same tokens, it may not exceed."""

_LEARNT = 896
_GATE_PREFIX, _GATE_TOKENS = 640, 160
_PROBE_TOKENS = 48
# Part of what the gate's scheme loses beyond the floor that a rung may lose: the few tokens do not stand for all.
_MARGIN = 0.8
# Steps of the probes: coarse, so that one plane's loss stands out from the engine's own rounding.
_PROBE = {"k": 0.6, "v": 1.2}
# How much of what the probes say is followed: they are short, and the loss of all planes is not quite their sum.
_TRUST = 0.25
_GAINS = (0.6, 1.6)


def calibrate(
    engine: Engine, new_seq: Seq, progress: Callable[[float], None] | None = None
) -> Generator[None, None, Recipe]:
    """The recipe of the engine's model, its rungs gated. `progress` is called with the part done, 0 to 1."""
    tell = progress or (lambda _: None)
    samples = []
    texts = sample_texts(CALIBRATION)
    for number, text in enumerate(texts.values()):
        samples.append((yield from take_snapshot(engine, new_seq, engine.tokenizer.encode(text)[:_LEARNT])))
        tell(0.3 * (number + 1) / len(texts))
    recipe = learn(samples, engine.capabilities.fingerprint, engine.capabilities.model.body_parameters)
    if not any(recipe.sections):
        return _nothing_to_fold(recipe, samples[0])
    trials: list[Trial] = []
    for text in sample_texts(GATE).values():
        tokens = engine.tokenizer.encode(text)[: _GATE_PREFIX + _GATE_TOKENS]
        trials.append((yield from prepare(engine, new_seq, tokens[:_GATE_PREFIX], tokens[_GATE_PREFIX:])))
    tell(0.4)
    yield from _weigh_layers(recipe, trials[0], lambda part: tell(0.4 + 0.4 * part))
    yield from _pass_gates(recipe, trials)
    tell(1.0)
    return recipe


def folded(snapshot: Snapshot, recipe: Recipe, rung: Rung) -> Snapshot:
    """`snapshot` after a fold on `rung` and back."""
    data = fold(snapshot, recipe, rung).data
    return unfold(data, lambda _: recipe, most_bytes=2 * snapshot.nbytes + (1 << 20))


def _nothing_to_fold(recipe: Recipe, sample: Snapshot) -> Recipe:
    kinds = sorted({plane.kind for _, plane in sample.planes()}) or ["opaque"]
    for preset in PRESETS:
        recipe.rungs[preset] = -1
        recipe.notes[preset] = f"{preset} folds float16 cells; this model's are {', '.join(kinds)}: kept without loss"
    return recipe


def _weigh_layers(recipe: Recipe, trial: Trial, tell: Callable[[float], None]) -> Generator[None, None, None]:
    """Sets each layer's gains: steps finer where a layer's loss hurts more, at the same bits over all."""
    planes = [(s, layer) for s, layers in enumerate(recipe.sections) for layer in range(len(layers))]
    short = trial.shortened(_PROBE_TOKENS)
    costs: dict[str, list[float]] = {"k": [], "v": []}
    for number, (section, layer) in enumerate(planes):
        for part, found in costs.items():
            divergence = yield from short.compare(_disturbed(trial.snapshot, section, layer, part))
            found.append(divergence.mean)
        tell((number + 1) / len(planes))
    for part, found in costs.items():
        for (section, layer), gain in zip(planes, _gains(found), strict=True):
            setattr(recipe.sections[section][layer], f"{part}_gain", gain)


def _gains(costs: Sequence[float]) -> list[float]:
    array = np.maximum(np.array(costs), 1e-6)
    gains = (array / np.exp(np.log(array).mean())) ** -_TRUST
    return [float(gain) for gain in np.clip(gains, *_GAINS)]


def _disturbed(snapshot: Snapshot, section: int, layer: int, part: str) -> Snapshot:
    """`snapshot` with rounding noise on one plane."""
    random = np.random.default_rng(layer)
    only = snapshot.sections[section]

    def change(values: F32, at: Section, plane: Plane) -> F32:
        if at is not only or (plane.layer, plane.part) != (layer, part):
            return values
        size = at.heads.k_size if part == "k" else at.heads.v_size
        heads = values.reshape(len(values), -1, size)
        spread = (heads - heads.mean(axis=0)).std(axis=(0, 2)) if part == "k" else np.sqrt((heads**2).mean(axis=2))
        noise = random.uniform(-0.5, 0.5, heads.shape).astype(np.float32) * _PROBE[part]
        noise *= spread[None, :, None] if part == "k" else spread[:, :, None]
        noise[0] = 0  # the first token is kept exactly
        return (heads + noise).reshape(values.shape)

    return change_planes(snapshot, change)


def _pass_gates(recipe: Recipe, trials: Sequence[Trial]) -> Generator[None, None, None]:
    """Moves each preset to the coarsest rung, from where it begins, that loses no more than its gate's scheme."""
    measured: dict[int, float] = {}
    floor = (yield from _compare(trials, NOISE.apply)).mean
    for preset, scheme in GATES.items():
        gate = (yield from _compare(trials, REFERENCES[scheme].apply)).mean
        limit = min(gate, floor + _MARGIN * max(0.0, gate - floor))
        place = PRESETS[preset]
        while place >= 0:
            if place not in measured:
                measured[place] = (yield from _compare(trials, _folder(recipe, LADDER[place]))).mean
            if measured[place] <= limit:
                break
            place -= 1
        recipe.rungs[preset] = place
        if place != PRESETS[preset]:
            recipe.notes[preset] = _why(preset, scheme, (floor, gate), place, measured)
            log.info("%s", recipe.notes[preset])


def _why(preset: str, scheme: str, limits: tuple[float, float], place: int, measured: dict[int, float]) -> str:
    begins = LADDER[PRESETS[preset]]
    now = f"folds on {LADDER[place].name}" if place >= 0 else "folds without loss"
    return (
        f"{preset} {now}: on {begins.name} this model lost {measured[PRESETS[preset]]:.5f} nats a token, more than "
        f"{_MARGIN:g} of the way from the floor ({limits[0]:.5f}) to what {scheme} loses ({limits[1]:.5f})"
    )


def _folder(recipe: Recipe, rung: Rung) -> Callable[[Snapshot], Snapshot]:
    return lambda snapshot: folded(snapshot, recipe, rung)


def _compare(trials: Sequence[Trial], change: Callable[[Snapshot], Snapshot]) -> Generator[None, None, Divergence]:
    parts: list[Divergence] = []
    for trial in trials:
        divergence = yield from trial.compare(change(trial.snapshot))
        parts.append(divergence)
    return Divergence.join(parts)
