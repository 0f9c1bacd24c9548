"""Draft-verify decoding: Pinfold, llama-server's n-gram modes and llama-cpp-python's prompt lookup.

Each against its own plain decoding in the same run. Greedy; prefill is left out of every speed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from common import Figure, Report, command, median, model_path, parser, progress, settle, table
from draft_peers import DraftPeer, LookupPeer, ServerPeer
from llama_server import NGRAM_MODES

from pinfold import Runtime
from pinfold.bench.draft import bench_draft
from pinfold.bench.workloads import WORKLOADS, Workload

SERVER, LOOKUP = "llama-server", "llama-cpp-python"
# Parts of the ceiling, and plain times, that the workloads are to reach.
EDIT, EDIT_PART = "code edit", 0.6
CALLS, CALLS_TIMES = "tool calls", 1.5
LEAST = 0.98


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--only", nargs="*", default=[], help="names of workloads")
    options.add_argument("--no-peers", action="store_true")
    options.add_argument("--peer", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.peer:
        print(json.dumps(measure_peer(args)))
        return
    ours = in_a_process(args, "pinfold")
    peers = [] if args.no_peers else [*(f"{SERVER} {mode}" for mode in NGRAM_MODES), LOOKUP]
    theirs = {peer: in_a_process(args, peer) for peer in peers}
    args.peer = None
    Report(command("draft.py", options, args), args.model, figures(ours, theirs), tables(ours, theirs)).print(
        as_json=args.json
    )


def in_a_process(args: argparse.Namespace, peer: str) -> Any:
    """What `measure_peer` finds in a process of its own: two engines in one would take each other's cores."""
    line = [sys.executable, __file__, "--peer", peer, "--model", args.model, "--threads", str(args.threads)]
    line += ["--repeats", str(args.repeats), *(["--only", *args.only] if args.only else [])]
    progress(peer)
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    settle()
    return json.loads(done.stdout)


def measure_peer(args: argparse.Namespace) -> Any:
    chosen = [w for w in WORKLOADS if not args.only or w.name in args.only]
    if args.peer == "pinfold":
        n_ctx = max(workload.n_ctx for workload in chosen)
        with Runtime(args.model, n_ctx=n_ctx, n_threads=args.threads, store="off") as rt:
            found = bench_draft(rt, chosen, args.repeats, progress)
        return {"ceiling": found.ceiling, "rows": [asdict(row) for row in found.rows]}
    plain, drafted = (open_peer(args, chosen, draft=draft) for draft in (False, True))
    try:
        return [ratio_of(workload, plain, drafted, args.repeats) for workload in chosen]
    finally:
        plain.close()
        drafted.close()


def open_peer(args: argparse.Namespace, chosen: Sequence[Workload], *, draft: bool) -> DraftPeer:
    n_ctx = max(workload.n_ctx for workload in chosen)
    path = model_path(args.model)
    if args.peer == LOOKUP:
        return LookupPeer(path, threads=args.threads, n_ctx=n_ctx, draft=draft)
    mode = args.peer.removeprefix(SERVER).strip() if draft else None
    return ServerPeer(path, threads=args.threads, n_ctx=n_ctx, draft=mode)


def ratio_of(workload: Workload, plain: DraftPeer, drafted: DraftPeer, repeats: int) -> Any:
    """Drafted over plain, one after the other; a peer that fails on a workload is said to."""
    pairs = []
    try:
        for number in range(repeats + 1):
            settle()
            before, texts = plain.speed(workload.turns)
            settle()
            after, drafted_texts = drafted.speed(workload.turns)
            if number:  # the first pair computes the prefixes
                pairs.append((before, after))
    except (RuntimeError, ValueError, SystemExit) as e:
        return {"workload": workload.name, "ratio": None, "why": f"{type(e).__name__}: {e}"[:200]}
    return {
        "workload": workload.name,
        "plain_tps": median(before for before, _ in pairs),
        "draft_tps": median(after for _, after in pairs),
        "ratio": median(after / before for before, after in pairs),
        "same_text": texts == drafted_texts,
    }


def figures(ours: Any, theirs: dict[str, Any]) -> list[Figure]:
    found = []
    for row in ours["rows"]:
        name, ratio = row["workload"], row["ratio"]
        if name == EDIT and ours["ceiling"]:
            found.append(Figure(f"{name}, part of the ceiling", ratio / ours["ceiling"], EDIT_PART, "higher"))
        elif name == CALLS:
            found.append(Figure(f"{name}, drafted / plain", ratio, CALLS_TIMES, "higher"))
        else:
            found.append(Figure(f"{name}, drafted / plain", ratio, LEAST, "higher"))
        best = best_peer(name, theirs)
        if best is not None:
            found.append(Figure(f"{name}, Pinfold's ratio / {best[0]}'s", ratio / best[1], 1.0, "higher"))
    return found


def best_peer(workload: str, theirs: dict[str, Any]) -> tuple[str, float] | None:
    ratios = {peer: ratio_in(rows, workload) for peer, rows in theirs.items()}
    known = {peer: ratio for peer, ratio in ratios.items() if ratio is not None}
    return max(known.items(), key=lambda pair: pair[1]) if known else None


def ratio_in(rows: Any, workload: str) -> float | None:
    ratio: float | None = next((row["ratio"] for row in rows if row["workload"] == workload), None)
    return ratio


def tables(ours: Any, theirs: dict[str, Any]) -> list[str]:
    own = table(
        (
            f"Pinfold; ceiling {ours['ceiling']:.2f}",
            "plain tok/s",
            "drafted tok/s",
            "times",
            "at most",
            "drafted",
            "accepted",
        ),
        [
            (
                row["workload"],
                f"{row['plain_tps']:.1f}",
                f"{row['draft_tps']:.1f}",
                f"{row['ratio']:.2f}",
                f"{row['limit']:.2f}",
                row["drafted"],
                row["accepted"],
            )
            for row in ours["rows"]
        ],
    )
    if not theirs:
        return [own]
    names = [row["workload"] for row in ours["rows"]]
    rows = [("Pinfold", *(cell(row) for row in ours["rows"]))]
    for peer, found in theirs.items():
        by_name = {row["workload"]: row for row in found}
        rows.append((peer, *(cell(by_name[name]) for name in names)))
    failed = [
        f"{peer}, {row['workload']}: {row['why']}" for peer, found in theirs.items() for row in found if "why" in row
    ]
    notes = "\n".join(["\\* the drafted answer is another one than the plain one", *failed])
    return [own, table(("drafted / plain", *names), rows), notes]


def cell(row: Any) -> str:
    if row["ratio"] is None:
        return "failed"
    return f"{row['ratio']:.2f}" + ("" if row["same_text"] else " *")


if __name__ == "__main__":
    main()
