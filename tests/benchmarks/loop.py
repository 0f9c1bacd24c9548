"""A tool-calling agent of twenty steps: what comes from the cache, what a step costs before its first token, and what
forced calls and their parser cost while decoding."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from agents import system_prompt
from bare import BareLlama
from common import Figure, Report, command, median, model_path, paired, parser, progress, settle, table
from decoding import rotated

from pinfold import Runtime

N_CTX = 8192
MAX_SEQUENCES = 16
TASK = "Go through the ledger entry by entry, and look up each thing that is named there. Begin with the first entry."
FOUND = (
    "Entry {n}: the {what} was weighed at the lower mill, sealed at the north gate and counted {n} times by the clerk."
)
THINGS = ("lantern", "barrel", "anchor", "compass", "permit")


def tool(name: str, description: str, **fields: str) -> dict[str, Any]:
    properties = {field: {"type": "string", "description": text} for field, text in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("look_up", "Looks a thing up in the ledger.", thing="What to look for", reason="Why it is looked for"),
    tool("list_entries", "Lists the entries of one day.", day="The day, such as market day"),
    tool("send_note", "Sends a note to somebody in the house.", to="Who gets it", text="What it says"),
    tool("weigh", "Weighs a thing at the lower mill.", thing="What is weighed"),
]
LONG_CALL = [tool("write_note", "Writes a note.", text="The whole note, at least ten sentences")]


@dataclass(frozen=True)
class Step:
    """One step: tokens of its prompt, those from the cache, seconds to the first token, and of the bare prefill."""

    prompt: int
    cached: int
    ttft_s: float
    bare_s: float


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--prompt", type=int, default=1500, help="tokens of the system prompt")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--answer", type=int, default=32, help="most tokens of a step's call")
    options.add_argument("--rounds", type=int, default=9, help="times that decoding is measured in turn")
    args = options.parse_args()
    sizes = {"n_ctx": N_CTX, "kv_cells": 2 * N_CTX, "max_sequences": MAX_SEQUENCES}
    with Runtime(args.model, n_threads=args.threads, store="off", draft="off", **sizes) as runtime:
        steps = take_steps(runtime, args)
        decoding, decoding_table = measure_decoding(runtime, args)
    figures = [
        Figure(
            "prompt tokens from the cache", sum(s.cached for s in steps) / sum(s.prompt for s in steps), 0.95, "higher"
        ),
        Figure("a step's first token / bare prefill of its new tokens", step_ratio(steps), 1.1, "lower"),
        decoding,
    ]
    tables = [steps_table(steps), decoding_table]
    Report(command("loop.py", options, args), args.model, figures, tables).print(as_json=args.json)


def take_steps(runtime: Runtime, args: argparse.Namespace) -> list[Step]:
    """The loop: each step's call and its result are sent with the next. The prompt and its tools are pinned before."""

    def on_its_thread(function: Callable[[], Any]) -> Any:
        """OpenMP slows down where several threads of a process drive llama.cpp, so the bare loop runs on Pinfold's."""
        return runtime._backend.worker.call(lambda _: function())

    bare = on_its_thread(
        lambda: BareLlama(model_path(args.model), threads=args.threads, cells=2 * N_CTX, sequences=MAX_SEQUENCES)
    )
    system = {"role": "system", "content": system_prompt(runtime, 0, args.prompt)}
    runtime.pin([system], TOOLS, name="agent")
    messages: list[dict[str, Any]] = [system, {"role": "user", "content": TASK}]
    known: list[int] = []
    steps: list[Step] = []
    for number in range(1, args.steps + 1):
        tokens = list(runtime._backend.renderer.render(messages, TOOLS).tokens)
        settle()
        done = runtime.chat(messages, tools=TOOLS, tool_choice="required", max_tokens=args.answer)
        cached, first = done.usage.cached_tokens, done.timings.ttft_s
        settle()
        seconds = on_its_thread(partial(bare_prefill, bare, known, tokens, cached))
        steps.append(Step(len(tokens), cached, first, seconds))
        known = tokens
        progress(f"step {number}: {cached} of {len(tokens)} tokens cached, {first * 1e3:.0f} ms")
        messages += exchange(number)
    on_its_thread(bare.close)
    return steps


def bare_prefill(bare: BareLlama, known: list[int], tokens: list[int], cached: int) -> float:
    """Seconds in which the bare loop computes what Pinfold computed; what it lacks before that is not in the time."""
    have = next(
        (n for n, (a, b) in enumerate(zip(known, tokens, strict=False)) if a != b), min(len(known), len(tokens))
    )
    have = min(have, cached)
    bare.cut(0, have)
    if have < cached:
        bare.evaluate(0, have, tokens[have:cached])
    began = time.perf_counter()
    bare.evaluate(0, cached, tokens[cached:])
    return time.perf_counter() - began


def exchange(number: int) -> list[dict[str, Any]]:
    """The call that a step is taken to have made, the same on every model, and its result."""
    what = THINGS[number % len(THINGS)]
    arguments = f'{{"thing": "{what}", "reason": "it is named in entry {number}"}}'
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    result = " ".join(FOUND.format(n=n, what=what) for n in range(number, number + 3))
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


def step_ratio(steps: list[Step]) -> float:
    """Median over the steps after the first, whose new tokens follow the pin."""
    return paired([step.ttft_s for step in steps[1:]], [step.bare_s for step in steps[1:]])


def steps_table(steps: list[Step]) -> str:
    shown = [(number, step) for number, step in enumerate(steps, 1) if number in (1, 2, len(steps) // 2, len(steps))]
    rows = [
        (f"step {n}", s.prompt, s.cached, s.prompt - s.cached, f"{s.ttft_s * 1e3:.1f}", f"{s.bare_s * 1e3:.1f}")
        for n, s in shown
    ]
    beyond = median(step.ttft_s - step.bare_s for step in steps[1:]) * 1e3
    rows.append(("median beyond the bare prefill", "", "", "", f"{beyond:.1f}", ""))
    return table(("step", "prompt", "cached", "new", "ms to first token", "bare prefill, ms"), rows)


def measure_decoding(runtime: Runtime, args: argparse.Namespace) -> tuple[Figure, str]:
    """Tokens per second of a forced call, grammar and parser in it, against free text from the same prompt."""
    messages = [{"role": "user", "content": "Write a long note to the harbour office about the winter storm."}]
    forced = {"tools": LONG_CALL, "tool_choice": "write_note", "frequency_penalty": 0.5}
    free = {**forced, "tool_choice": "none"}
    ways: dict[str, dict[str, Any]] = {"free text": free, "forced call": forced}

    def speed(options: dict[str, Any]) -> float:
        settle()
        began = time.perf_counter()
        done = runtime.chat(messages, max_tokens=128, **options)
        return (done.usage.completion_tokens - 1) / (time.perf_counter() - began - done.timings.ttft_s)

    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for options in ways.values():
        speed(options)
    for i in range(args.rounds):
        for name in rotated(list(ways), i):
            speeds[name].append(speed(ways[name]))
            progress(f"round {i + 1}: {name} {speeds[name][-1]:.1f} tok/s")
    ratio = paired(speeds["forced call"], speeds["free text"])
    rows = [(name, f"{median(found):.1f}") for name, found in speeds.items()]
    return Figure("decode, forced call / free text", ratio, 0.98, "higher"), table(("one request", "tok/s"), rows)


if __name__ == "__main__":
    main()
