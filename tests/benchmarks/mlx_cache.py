"""Packed cells of the MLX engine: bytes saved against answers moved, for each step of the ladder from 8 bits for both.

Correctness only: it times nothing, so that it may run on a CPU. On a CPU give it minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import progress, table

from pinfold.engines.mlx.caches import open_caches, plan_caches
from pinfold.engines.mlx.folder import read_folder
from pinfold.engines.mlx.kv_types import LADDER, parse_kv_types
from pinfold.engines.mlx.library import load_library
from pinfold.engines.mlx.packing import Plan, Trial, plan_packing, try_packing
from pinfold.engines.mlx.rehearsal import rehearse
from pinfold.engines.mlx.tokenizer import FolderTokenizer

COLUMNS = ("K/V", "bits", "times smaller", "mean KLD", "top-1")
TEXT = (
    "You are the assistant of a small library. Members borrow books for three weeks and may renew them twice. A "
    "reserved book cannot be renewed. Late books cost ten cents a day, at most five dollars. Answer in one sentence, "
    "and name the rule that you used.\n\nQuestion: My book is two days late and nobody has reserved it. May I keep it "
    "longer?\nAnswer: "
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, help="a model in MLX format")
    options.add_argument("--tokens", type=int, default=96, help="tokens of the text that are evaluated")
    args = options.parse_args()
    rows = [
        (name, f"{bits(plan):.2f}", f"{smaller(plan):.2f}", f"{trial.divergence:.5f}", f"{trial.agreement:.0%}")
        for name, plan, trial in ladder(args.folder, args.tokens)
    ]
    print(table(COLUMNS, rows))


def ladder(folder: Path, tokens: int, text: str = TEXT) -> Iterator[tuple[str, Plan, Trial]]:
    """Each step of the ladder, tried on the first `tokens` tokens of `text`."""
    mx = load_library()
    model, tokenizer = load(mx, folder)
    slots, cells = plan_caches(model), mx.float16
    shapes = rehearse(mx, model, lambda: open_caches(mx, slots, cells, lambda *_: None), tokenizer.n_vocab)
    for name in LADDER:
        progress(name)
        plan = plan_packing(mx, model, slots, shapes, parse_kv_types(name, "f16"))
        yield name, plan, compare(mx, model, plan, tokenizer.encode(text)[:tokens], slots)


def load(mx: Any, folder: Path) -> tuple[Any, FolderTokenizer]:
    """The model, in float32 where a CPU computes."""
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    if mx.default_device() == mx.Device(mx.cpu):
        model.set_dtype(mx.float32)
    return model, FolderTokenizer(read_folder(folder))


def compare(mx: Any, model: Any, plan: Plan, tokens: list[int], slots: Any) -> Trial:
    """How one step answers."""
    kind = mx.float16
    whole, packed = (lambda s=s: open_caches(mx, s, kind, lambda *_: None) for s in (slots, plan.slots))
    return try_packing(mx, model, plan, tokens, whole, packed)


def bits(plan: Plan) -> float:
    """Bits of a channel, steps and offsets among them."""
    return 8 * plan.layers[0].cell / smaller(plan)


def smaller(plan: Plan) -> float:
    """How many times smaller packed tokens are than whole ones."""
    return sum(layer.whole_bytes for layer in plan.layers) / sum(layer.bytes_per_token for layer in plan.layers)


if __name__ == "__main__":
    main()
