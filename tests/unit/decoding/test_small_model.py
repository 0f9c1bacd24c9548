"""The draft model: what it may guess."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pinfold.decoding.drafters.model import SmallModel
from pinfold.engines.base import Span
from pinfold.engines.script import Script
from pinfold.engines.scripted import ScriptedEngine
from pinfold.options import RuntimeOptions


class Padded(ScriptedEngine):
    """Its logits have rows behind the vocabulary, and those are the largest."""

    def forward(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        rows = super().forward(spans)
        return [None if row is None else np.pad(row, ((0, 0), (0, 61)), constant_values=99) for row in rows]


def test_rows_behind_the_targets_vocabulary_are_never_guessed() -> None:
    engine = Padded(Script(("weigh",)), RuntimeOptions(max_sequences=4))
    model = SmallModel(engine, engine.tokenizer.n_vocab)
    assert bytes(model.follow(1, list(b"Say: "), 5)) == b"weigh"
