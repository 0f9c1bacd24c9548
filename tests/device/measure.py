"""What both device scripts do: tables of speeds, sizes and memory beside mlx-lm's own loop on the same model, of folded
sessions, and of draft-verify decoding.

A folder in MLX format is all that is needed besides `pinfold[mlx]` or `pinfold[mlx-cuda]`. Nothing is installed here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pinfold import Runtime
from pinfold.bench.draft import bench_draft
from pinfold.bench.workloads import WORKLOADS
from pinfold.engines.mlx.attention import attend
from pinfold.engines.mlx.kv_types import Steps
from pinfold.engines.mlx.library import load_library
from pinfold.engines.mlx.packed import PackedCells, Packing
from pinfold.sessions.rewrite import NOT_CALIBRATED

__all__ = ["run"]

CELLS = ("f16", "q8/q4", "q6/q3")
COLUMNS = ("", "prefill tok/s", "decode tok/s", "TTFT cold s", "TTFT warm s", "KV bytes/token", "peak GiB")
KERNELS = ("kernel over codes", "what came of it")
FOLDS = ("fold of the prompt", "codec", "MiB before", "MiB after", "times smaller")
DRAFTS = ("drafting", "plain tok/s", "drafted tok/s", "times", "from", "same text")
PRESETS = ("exact", "balanced", "compact")
CALIBRATION_S = 90.0
WORDS = "The river runs past the mill, and the miller counts his sacks of grain before the rain comes. "
# Of the scores' spread: a kernel that reads the wrong cells is off by far more.
AGREES = 0.05

Row = tuple[str, ...]


def run(device: str | None, argv: list[str] | None = None) -> str:
    """Measures on `device` (metal or cuda; None takes what there is) and returns the tables as Markdown.

    Raises:
        SystemExit: this machine has no such device, or a kernel there disagrees with the plain form.
    """
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, help="a model in MLX format")
    options.add_argument("--prompt", type=int, default=4096, help="tokens of the prompt")
    options.add_argument("--tokens", type=int, default=128, help="tokens of the answer")
    options.add_argument("--workloads", type=int, default=len(WORKLOADS), help="how many of drafting's to run")
    args = options.parse_args(argv)
    mx = load_library()
    if device is not None and not getattr(mx, device).is_available():
        msg = f"MLX finds no {device} here. Run this script on a machine that has it."
        raise SystemExit(msg)
    check = check_attention(mx)
    kernels: list[Row] = []
    tables = [
        as_table(COLUMNS, [*ours(mx, args, kernels), *theirs(mx, args)]),
        as_table(KERNELS, kernels),
        as_table(FOLDS, folded(args)),
        as_table(DRAFTS, drafted(args)),
    ]
    return "\n\n".join([f"Attention over codes is off by {check:.2%} of the answers' spread.", *tables])


def as_table(head: Row, rows: Iterable[Row]) -> str:
    """Markdown."""
    rule = ("---", *["---:"] * (len(head) - 1))
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def check_attention(mx: Any) -> float:
    """How far attention over codes is from attention over the cells that they stand for, on this device."""
    packing = Packing(mx, Steps(8, 64), Steps(4, 64), rotated=True, cells=mx.float16)
    keys, values, whole = (mx.random.normal((1, 2, 256, 64)).astype(mx.float16) for _ in range(3))
    k, v = packing.pack(keys, values)
    cells = PackedCells(256, 256, k, v, whole, whole, packing)
    queries = mx.random.normal((1, 8, 17, 64)).astype(mx.float16)
    plain = attend(queries, cells, 0.125)[..., :4, :]
    found = attend(queries[..., :4, :], cells, 0.125)
    off = float(mx.abs(found - plain).max() / mx.sqrt(mx.var(plain.astype(mx.float32))))
    if not off < AGREES:
        msg = f"Attention over codes disagrees with the plain form here, by {off:.2%}. Use kv_resident='f16'."
        raise SystemExit(msg)
    return off


def ours(mx: Any, args: argparse.Namespace, kernels: list[Row]) -> Iterator[Row]:
    """One row for each type of cells; `kernels` gets what became of the kernel for each packed one."""
    size = args.prompt + args.tokens + 64
    for cells in CELLS:
        mx.reset_peak_memory()
        with Runtime(args.folder, n_ctx=size, kv_cells=2 * size, kv_resident=cells, store="off", draft="off") as rt:
            prompt = rt.detokenize(rt.tokenize(WORDS * args.prompt)[: args.prompt])
            cold = rt.complete(prompt, max_tokens=args.tokens)
            warm = rt.complete(prompt, max_tokens=1)
            name = f"pinfold {cells}"
            mode = rt.capabilities.mode("kv_resident quantized").reason
            width = rt.capabilities.bytes_per_token
            kernels += [(cells, mode.reason) for mode in rt.capabilities.modes if mode.name == "kernel over codes"]
        speeds = (cold.timings.prompt_tps, cold.timings.decode_tps)
        yield (
            f"{name}: {mode}" if cells != "f16" else name,
            *(f"{speed or 0:.1f}" for speed in speeds),
            f"{cold.timings.ttft_s or 0:.3f}",
            f"{warm.timings.ttft_s or 0:.3f}",
            f"{width:,}",
            peak(mx),
        )


def folded(args: argparse.Namespace) -> Iterator[Row]:
    """One row for each preset: what a pin of the prompt comes to, once the model is calibrated."""
    with Runtime(args.folder, n_ctx=args.prompt + 256, store="off", draft="off") as rt:
        text = rt.detokenize(rt.tokenize(WORDS * args.prompt)[: args.prompt])
        rt.pin([{"role": "system", "content": text}], name="prompt")
        end = time.monotonic() + CALIBRATION_S
        while NOT_CALIBRATED in rt.refold("prompt", "balanced").notes and time.monotonic() < end:
            time.sleep(1.0)
        for preset in PRESETS:
            report = rt.refold("prompt", preset)
            before, after = report.raw_bytes / 2**20, report.folded_bytes / 2**20
            yield preset, report.codec, f"{before:.2f}", f"{after:.2f}", f"{before / after:.2f}"


def drafted(args: argparse.Namespace) -> Iterator[Row]:
    """One row for each workload of `pinfold bench draft`, measured once."""
    chosen = WORKLOADS[: args.workloads]
    if not chosen:
        return
    with Runtime(args.folder, n_ctx=max(each.n_ctx for each in chosen), store="off") as rt:
        for row in bench_draft(rt, chosen, repeats=1).rows:
            speeds = (f"{row.plain_tps:.1f}", f"{row.draft_tps:.1f}", f"{row.ratio:.2f}")
            yield row.workload, *speeds, row.effective, "yes" if row.same_text else "no"


def theirs(mx: Any, args: argparse.Namespace) -> Iterator[Row]:
    """mlx-lm's own loop, with whole cells and with its cache of 8 bits."""
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model, _ = load_model(args.folder)
    prompt = mx.array([(7 + 7919 * n) % 200 for n in range(args.prompt)])
    for name, options in (("mlx-lm", {}), ("mlx-lm, 8 bits", {"kv_bits": 8, "kv_group_size": 64})):
        mx.reset_peak_memory()
        began = time.perf_counter()
        steps = generate_step(prompt, model, max_tokens=args.tokens, **options)
        next(steps)
        first = time.perf_counter() - began
        count = sum(1 for _ in steps)
        rest = time.perf_counter() - began - first
        yield name, f"{args.prompt / first:.1f}", f"{count / rest:.1f}", f"{first:.3f}", "", "", peak(mx)


def peak(mx: Any) -> str:
    """The most memory that was in use since the last reset, in GiB."""
    return f"{mx.get_peak_memory() / 2**30:.2f}"
