"""A pin before and after a restart: time to the first token cold, warm, and first of all in a new process.

Each process is new and opens the same store. Its first turn comes as soon as the Runtime is open, or a second after
that. The model is calibrated before, as it is after its first idle minute.
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
OTHER = "other"
# In which the pin without a salt, which a new process reads ahead, is restored.
READ_AHEAD_S = 2.0
# Seconds between the start of a process and its first turn.
WAITS = (0.0, 1.0)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--prompt", type=int, default=2000, help="tokens of the pinned prompt")
    options.add_argument("--restarts", type=int, default=5)
    options.add_argument("--phase", choices=("learn", "stay", "return", "tiers"), help=argparse.SUPPRESS)
    options.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--wait", type=float, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.phase:
        print(json.dumps({"learn": learn, "stay": stay, "return": come_back, "tiers": tiers}[args.phase](args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        args.store = Path(folder) / "store"
        progress("calibrating, and pinning")
        pinned = in_a_process("learn", args)
        stayed = in_a_process("stay", args)
        restored = [in_a_process("tiers", args) for _ in range(args.restarts)]
        returned = {wait: [in_a_process("return", args, wait) for _ in range(args.restarts)] for wait in WAITS}
    args.store = None
    report(
        options,
        args,
        pinned,
        stayed,
        restored,
        {wait: [each["first"] for each in all_] for wait, all_ in returned.items()},
        median(each["opened_ms"] for all_ in returned.values() for each in all_),
    )


def in_a_process(phase: str, args: argparse.Namespace, wait: float = 0.0) -> dict[str, Any]:
    command_line = [sys.executable, __file__, "--phase", phase, "--store", str(args.store), "--model", args.model]
    command_line += ["--threads", str(args.threads), "--prompt", str(args.prompt)]
    command_line += ["--wait", str(wait)]
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
        system = system_of(rt, args.prompt)
        (args.store / "system.json").write_text(json.dumps(system))
        pin = rt.pin([system], name="rules", ttl="1d")
        rt.pin([system], name="others", ttl="1d", salt=OTHER)  # one with a salt is read when it is asked for
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and not rt._backend.worker.call(
            lambda manager: all(e.stored and e.codec != "exact" for e in manager.space.shelf if e.pin)
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


def tiers(args: argparse.Namespace) -> dict[str, Any]:
    """The same pin restored from disk, and then from its folded copy in memory, while nothing else is done."""
    system = json.loads((args.store / "system.json").read_text())
    with open_runtime(args) as rt:
        time.sleep(READ_AHEAD_S)
        disk = ask(rt, system, 1, salt=OTHER)
        rt.refold("others", "balanced", salt=OTHER)
        rt._backend.worker.call(forget_recent)
        memory = ask(rt, system, 2, salt=OTHER)
    if (disk["hit"], memory["hit"]) != ("disk", "memory"):
        raise SystemExit(f"restored from elsewhere: {disk}, {memory}")
    return {"disk": disk["restore_ms"], "memory": memory["restore_ms"]}


def forget_recent(manager: Any) -> None:
    """Earlier requests, which hold the same prefix in the engine's cells."""
    for entry in list(manager.space.shelf):
        if not entry.name:
            manager.space.forget(entry)


def come_back(args: argparse.Namespace) -> dict[str, Any]:
    """The first turn of a new process."""
    system = json.loads((args.store / "system.json").read_text())
    began = time.perf_counter()
    with open_runtime(args) as rt:
        opened_ms = 1e3 * (time.perf_counter() - began)
        time.sleep(args.wait)
        return {"first": ask(rt, system, 1), "opened_ms": opened_ms}


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
    restored: list[dict[str, float]],
    firsts: dict[float, list[dict[str, Any]]],
    opened_ms: float,
) -> None:
    if any(first["hit"] not in ("disk", "memory") for turns in firsts.values() for first in turns):
        raise SystemExit(f"not every restart found the pin: {firsts}")
    cold, warm = stayed["cold"]["ttft_ms"], median(turn["ttft_ms"] for turn in stayed["warm"])
    first = {wait: median(each["ttft_ms"] for each in turns) for wait, turns in firsts.items()}
    figures = []
    for wait, when in ((0.0, "at once"), (1.0, "a second later")):
        figures += [
            Figure(f"first turn after a restart, {when} / warm turn", first[wait] / warm, 1.5, "lower"),
            Figure(f"cold turn / first turn after a restart, {when}", cold / first[wait], 8, "higher"),
        ]
    ratio = median(each["disk"] / each["memory"] for each in restored)
    figures.append(Figure("restore from disk / from memory", ratio, 1.3, "lower"))
    from_memory = median(each["memory"] for each in restored)
    figures.append(Figure("restore from memory / cold turn", from_memory / cold, 0.03, "lower"))
    rows = [
        ("cold", f"{cold:.0f}", "", stayed["cold"]["computed"]),
        ("warm", f"{warm:.0f}", "", stayed["warm"][0]["computed"]),
    ]
    for wait, turns in firsts.items():
        restore = median(turn["restore_ms"] for turn in turns)
        when = f"first after a restart, {wait:.0f} s after the start"
        rows.append((when, f"{first[wait]:.0f}", f"{restore:.0f}", turns[0]["computed"]))
    head = (f"turn on a pin of {pinned['tokens']} tokens", "ms to first token", "of it restore", "tokens computed")
    tables = [table(head, rows), f"Opening the Runtime took {opened_ms:.0f} ms."]
    Report(command("restart.py", options, args), args.model, figures, tables).print(as_json=args.json)


if __name__ == "__main__":
    main()
