"""A pin before and after a restart: time to the first token cold, warm, and first of all in a new process.

Each process is new and opens the same store. The model is calibrated before, as it is after its first idle minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import Figure, Report, command, median, parser, progress, table

from pinfold import Runtime

N_CTX = 4096
RULE = "Barrel {n} goes to the {where}, is weighed twice and sealed with wax number {n}; the clerk writes it down. "
PLACES = ("north gate", "lower mill", "stone bridge", "customs hall", "old library", "river dock")
QUESTION = (
    "Entry {n}: the surveyor says that a barrel was counted twice at the lower mill, and the clerk disagrees. Which of "
    "your rules applies, and what is the first thing that you would do about it this morning?"
)
WARM_TURNS = 6
# What the calibration of a model may take.
PATIENCE_S = 900.0


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--prompt", type=int, default=2000, help="tokens of the pinned prompt")
    options.add_argument("--restarts", type=int, default=5)
    options.add_argument("--phase", choices=("learn", "stay", "return"), help=argparse.SUPPRESS)
    options.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.phase:
        print(json.dumps({"learn": learn, "stay": stay, "return": come_back}[args.phase](args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        args.store = Path(folder) / "store"
        progress("calibrating, and pinning")
        pinned = in_a_process("learn", args)
        stayed = in_a_process("stay", args)
        returned = [in_a_process("return", args) for _ in range(args.restarts)]
    args.store = None
    report(options, args, pinned, stayed, returned)


def in_a_process(phase: str, args: argparse.Namespace) -> dict[str, Any]:
    command_line = [sys.executable, __file__, "--phase", phase, "--store", str(args.store), "--model", args.model]
    command_line += ["--threads", str(args.threads), "--prompt", str(args.prompt)]
    done = subprocess.run(command_line, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    progress(f"{phase}: {found}")
    return found


def open_runtime(args: argparse.Namespace) -> Runtime:
    return Runtime(args.model, n_ctx=N_CTX, n_threads=args.threads, store=args.store)


def system_of(rt: Runtime, tokens: int) -> dict[str, str]:
    """A prompt of about so many tokens."""
    text, n = "", 0
    while len(rt.tokenize(text)) < tokens:
        text += RULE.format(n=n, where=PLACES[n % len(PLACES)])
        n += 1
    return {"role": "system", "content": text}


def learn(args: argparse.Namespace) -> dict[str, Any]:
    """Pins, and waits until the model is calibrated and the pin is folded on disk."""
    with open_runtime(args) as rt:
        pin = rt.pin([system_of(rt, args.prompt)], name="rules", ttl="1d")
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and not rt._worker.call(
            lambda manager: any(entry.stored and entry.codec != "exact" for entry in manager.space.shelf)
        ):
            time.sleep(0.5)
        return {"tokens": pin.tokens}


def stay(args: argparse.Namespace) -> dict[str, Any]:
    """A cold turn under a salt of its own, and warm ones on the pin."""
    with open_runtime(args) as rt:
        system = system_of(rt, args.prompt)
        cold = ask(rt, system, 0, salt="cold")
        ask(rt, system, 1)
        return {"cold": cold, "warm": [ask(rt, system, 2 + n) for n in range(WARM_TURNS)]}


def come_back(args: argparse.Namespace) -> dict[str, Any]:
    """The first turn of a new process."""
    with open_runtime(args) as rt:
        return {"first": ask(rt, system_of(rt, args.prompt), 1)}


def ask(rt: Runtime, system: dict[str, str], number: int, salt: str | None = None) -> dict[str, Any]:
    question = {"role": "user", "content": QUESTION.format(n=number)}
    done = rt.chat([system, question], max_tokens=2, salt=salt)
    computed = done.usage.prompt_tokens - done.usage.cached_tokens
    timings = done.timings
    return {
        "hit": done.cache.hit_kind,
        "ttft_ms": 1e3 * timings.ttft_s,
        "restore_ms": 1e3 * timings.restore_s,
        "computed": computed,
    }


def report(
    options: argparse.ArgumentParser,
    args: argparse.Namespace,
    pinned: dict[str, Any],
    stayed: dict[str, Any],
    returned: list[dict[str, Any]],
) -> None:
    firsts = [each["first"] for each in returned]
    if any(first["hit"] not in ("disk", "memory") for first in firsts):
        raise SystemExit(f"not every restart found the pin: {firsts}")
    cold, warm = stayed["cold"]["ttft_ms"], median(turn["ttft_ms"] for turn in stayed["warm"])
    first = median(each["ttft_ms"] for each in firsts)
    figures = [
        Figure("first turn after a restart / warm turn", first / warm, 1.5, "lower"),
        Figure("cold turn / first turn after a restart", cold / first, 8, "higher"),
    ]
    rows = [
        ("cold", f"{cold:.0f}", "", stayed["cold"]["computed"]),
        ("warm", f"{warm:.0f}", "", stayed["warm"][0]["computed"]),
        (
            "first after a restart",
            f"{first:.0f}",
            f"{median(f['restore_ms'] for f in firsts):.0f}",
            firsts[0]["computed"],
        ),
    ]
    head = (f"turn on a pin of {pinned['tokens']} tokens", "ms to first token", "of it restore", "tokens computed")
    Report(command("restart.py", options, args), args.model, figures, [table(head, rows)]).print(as_json=args.json)


if __name__ == "__main__":
    main()
