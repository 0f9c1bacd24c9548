"""Decoding: tokens per second against a bare loop over llama_decode, eight requests at once, and a fork's price."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bare import BareLlama
from common import Figure, Report, command, median, model_path, paired, parser, progress, settle, table

from pinfold import Runtime
from pinfold.engines.base import Span
from pinfold.sessions.manager import SessionManager

N_CTX = 2048
MAX_SEQUENCES = 64
QUESTION = "Write a long story about a lighthouse keeper, his daughter and the winter in which no ship came."
SUBJECTS = ("rivers", "bread", "clocks", "bridges", "whales", "glass", "maps", "bees")
FORK_PROMPT = "The keeper writes down the wind, the tide and the name of every ship that passes the rock. " * 70


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--tokens", type=int, default=256, help="tokens of an answer")
    options.add_argument("--rounds", type=int, default=7, help="times that everything is measured in turn")
    options.add_argument("--forks", type=int, default=100)
    args = options.parse_args()
    with Runtime(args.model, n_ctx=N_CTX, n_threads=args.threads, max_sequences=MAX_SEQUENCES, store="off") as runtime:
        speed_figures, speed_table = measure_speed(runtime, args)
        batch_figure, batch_table = measure_concurrency(runtime, args)
        fork_figure = measure_fork(runtime, args.forks)
    figures = [*speed_figures, batch_figure, fork_figure]
    report = Report(command("decoding.py", options, args), args.model, figures, [speed_table, batch_table])
    report.print(as_json=args.json)


def measure_speed(runtime: Runtime, args: argparse.Namespace) -> tuple[list[Figure], str]:
    """Decoding of one request through `chat` and `stream`, and of the same tokens by a bare loop, in turn."""
    messages = [{"role": "user", "content": QUESTION}]
    prompt = runtime._backend.renderer.render(messages, None).tokens
    cells = runtime.capabilities.n_cells

    def on_its_thread(function: Callable[[], Any]) -> Any:
        """OpenMP slows down where several threads of a process drive llama.cpp, so the bare loop runs on Pinfold's."""
        return runtime._backend.worker.call(lambda _: function())

    bare = on_its_thread(
        lambda: BareLlama(model_path(args.model), threads=args.threads, cells=cells, sequences=MAX_SEQUENCES)
    )
    ways: dict[str, Callable[[], tuple[float, int]]] = {
        "bare loop": lambda: on_its_thread(lambda: bare_speed(bare, prompt, args.tokens)),
        "Runtime.chat": lambda: chat_speed(runtime, messages, args.tokens),
        "Runtime.stream": lambda: stream_speed(runtime, messages, args.tokens),
    }
    for way in ways.values():
        way()
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    counts: dict[str, int] = {}
    for i in range(args.rounds):
        for name in rotated(list(ways), i):
            settle()
            seconds, counts[name] = ways[name]()
            speeds[name].append(counts[name] / seconds)
            progress(f"round {i + 1}: {name} {speeds[name][-1]:.1f} tok/s")
    bare.close()
    if len(set(counts.values())) != 1:
        msg = f"The answers differ in length, so their speeds cannot be compared: {counts}"
        raise SystemExit(msg)
    ratios = {name: paired(speeds[name], speeds["bare loop"]) for name in ways}
    figures = [
        Figure(f"decode, {name} / bare loop", ratios[name], 0.97, "higher")
        for name in ("Runtime.chat", "Runtime.stream")
    ]
    rows = [(name, counts[name], f"{median(speeds[name]):.1f}", f"{ratios[name]:.3f}") for name in ways]
    return figures, table(("one request", "tokens timed", "tok/s", "of the bare loop"), rows)


def bare_speed(bare: BareLlama, prompt: Sequence[int], tokens: int) -> tuple[float, int]:
    """Seconds from the first token to the last, and how many came after the first."""
    bare.cut(0, 0)
    token = bare.evaluate(0, 0, prompt)
    began = time.perf_counter()
    count = 1
    while count < tokens and token not in bare.end_tokens:
        token = bare.evaluate(0, len(prompt) + count - 1, [token])
        count += 1
    return time.perf_counter() - began, count - 1


def chat_speed(runtime: Runtime, messages: list[dict[str, str]], tokens: int) -> tuple[float, int]:
    """As `bare_speed`; what comes after the last token, such as parsing, is in the time."""
    began = time.perf_counter()
    done = runtime.chat(messages, max_tokens=tokens)
    whole = time.perf_counter() - began
    return whole - done.timings.ttft_s, done.usage.completion_tokens - 1


def stream_speed(runtime: Runtime, messages: list[dict[str, str]], tokens: int) -> tuple[float, int]:
    """As `bare_speed`, by the clock of the one who reads the stream."""
    first = 0.0
    count = 0
    for delta in runtime.stream(messages, max_tokens=tokens):
        first = first or time.perf_counter()
        if delta.done is not None:
            count = delta.done.usage.completion_tokens
    return time.perf_counter() - first, count - 1


def measure_concurrency(runtime: Runtime, args: argparse.Namespace) -> tuple[Figure, str]:
    """Eight requests from eight threads against the same eight one after another, prompts computed before."""
    chats = [[{"role": "user", "content": f"Write a long story about {subject}."}] for subject in SUBJECTS]

    def ask(chat: list[dict[str, str]]) -> int:
        return runtime.chat(chat, max_tokens=args.tokens // 4).usage.completion_tokens

    with ThreadPoolExecutor(len(chats)) as pool:
        ways: dict[str, Callable[[], int]] = {
            "one after another": lambda: sum(map(ask, chats)),
            "eight at once": lambda: sum(pool.map(ask, chats)),
        }
        for way in ways.values():
            way()
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for i in range(args.rounds):
            for name in rotated(list(ways), i):
                settle()
                began = time.perf_counter()
                count = ways[name]()
                speeds[name].append(count / (time.perf_counter() - began))
                progress(f"round {i + 1}: {name} {speeds[name][-1]:.1f} tok/s")
    ratio = paired(speeds["eight at once"], speeds["one after another"])
    rows = [(name, f"{median(speeds[name]):.1f}") for name in ways]
    gain = runtime._backend.worker.call(lambda manager: forward_gain(manager, len(chats)))
    rows.append(("what llama.cpp gains by eight rows in a forward", f"{gain:.2f} times"))
    return Figure("eight requests at once / one after another", ratio, 1.7, "higher"), table(
        ("eight requests", "tok/s"), rows
    )


def forward_gain(manager: SessionManager, rows: int, steps: int = 40) -> float:
    """Tokens per second of forwards with `rows` sequences over those with one, in turn, nothing else around them."""
    engine = manager.engine
    seqs = [manager.space.new_seq() for _ in range(rows)]
    times: dict[int, list[float]] = {1: [], rows: []}
    for step in range(steps):
        for count, taken in times.items():
            spans = [Span(seq, engine.length(seq), [1000 + step]) for seq in seqs[:count]]
            began = time.perf_counter()
            engine.forward(spans)
            taken.append(time.perf_counter() - began)
    for seq in seqs:
        manager.space.abandon(seq)
    return rows * median(times[1]) / median(times[rows])


def measure_fork(runtime: Runtime, forks: int) -> Figure:
    """Milliseconds of `Session.fork` of a long session, by the caller's clock."""
    system: list[dict[str, Any]] = [{"role": "system", "content": FORK_PROMPT}]
    session = runtime.session("trunk")
    done = session.chat([*system, {"role": "user", "content": "Who passed?"}], max_tokens=2)
    times = []
    for i in range(forks):
        began = time.perf_counter()
        fork = session.fork(f"branch {i}")
        times.append(time.perf_counter() - began)
        fork.drop()
    session.drop()
    return Figure(f"fork of a session of {done.usage.prompt_tokens} tokens", median(times) * 1e3, 1.0, "lower", "ms")


def rotated(names: list[str], by: int) -> list[str]:
    """`names`, beginning with another one each time, so that none always comes after the same."""
    by %= len(names)
    return names[by:] + names[:by]


if __name__ == "__main__":
    main()
