"""The client of a server against a bare httpx client on the same server, and 64 streams at once on one that counts."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from common import Figure, Report, command, median, model_path, paired, parser, progress, table

from pinfold import Runtime

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.servers import llama_server

MESSAGES = [
    {"role": "system", "content": "You keep the harbour's book. " * 40},
    {"role": "user", "content": "Write a long story about the keeper of the harbour."},
]
STREAMS, PIECES = 64, 300


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--tokens", type=int, default=96, help="tokens of a streamed answer")
    options.add_argument("--rounds", type=int, default=31, help="times that each client asks, in turn")
    args = options.parse_args()
    # One thread computes: a client that is measured needs a core of its own, as it has beside a server elsewhere.
    with llama_server(str(model_path(args.model)), threads=1) as address:
        figures, tables = measure_overhead(address, args)
    with counting_server() as address:
        figures.append(measure_crowd(address))
    Report(command("remote.py", options, args), args.model, figures, tables).print(as_json=args.json)


def measure_overhead(address: str, args: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Both clients ask for the same answer in turn; the server has the whole prompt cached."""
    with (
        Runtime(address, store="off") as rendered,
        Runtime(address, store="off", rendering="messages") as chats,
        httpx.Client(timeout=300) as bare,
    ):
        prompt = rendered._backend._servers[0].rendering.renderer.render(MESSAGES).text
        common = {"temperature": 0, "max_tokens": args.tokens, "stream": True}
        text = {**common, "prompt": prompt, "stream_options": {"include_usage": True}}
        chat = {**common, "messages": MESSAGES, "stream_options": {"include_usage": True}}
        pairs = {
            "prompts rendered here": (
                lambda: timed_runtime(rendered, args.tokens),
                lambda: timed_bare(bare, f"{address}/completions", text),
            ),
            "chats as they are": (
                lambda: timed_runtime(chats, args.tokens),
                lambda: timed_bare(bare, f"{address}/chat/completions", chat),
            ),
        }
        figures, rows = [], []
        for name, ways in pairs.items():
            for way in ways:
                way()
            times: list[list[tuple[float, float]]] = [[], []]
            for number in range(args.rounds):
                for which in (0, 1) if number % 2 else (1, 0):
                    times[which].append(ways[which]())
                progress(f"{name}: round {number + 1}")
            overhead = median([1000 * (o[0] - b[0]) for o, b in zip(*times, strict=True)])
            ratio = paired([o[1] for o in times[0]], [b[1] for b in times[1]])
            first = median([1000 * b[0] for b in times[1]])
            rows.append((name, f"{first:.1f} ms", f"{overhead:+.2f} ms", f"{ratio:.4f}"))
            figures.append(Figure(f"first token, {name}: ms over bare httpx", overhead, 2.0, "lower"))
            figures.append(Figure(f"stream, {name} / bare httpx", ratio, 1.01, "lower"))
    heads = ("the client sends", "first token, bare httpx", "first token, ours over it", "whole stream / bare httpx")
    return figures, [table(heads, rows)]


def timed_runtime(rt: Runtime, tokens: int) -> tuple[float, float]:
    """(seconds to the first text, to the end)."""
    began = time.perf_counter()
    first = 0.0
    for delta in rt.stream(MESSAGES, max_tokens=tokens):
        first = first or (time.perf_counter() - began if delta.text else 0.0)
    return first, time.perf_counter() - began


def timed_bare(client: httpx.Client, url: str, body: dict[str, Any]) -> tuple[float, float]:
    """The same of the least that a client can do: read the lines, and the JSON of each."""
    began = time.perf_counter()
    first = 0.0
    with client.stream("POST", url, json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            choices = json.loads(line[6:])["choices"]
            choice = choices[0] if choices else {}
            if not first and (choice.get("text") or (choice.get("delta") or {}).get("content")):
                first = time.perf_counter() - began
    return first, time.perf_counter() - began


def measure_crowd(address: str) -> Figure:
    """Lost, doubled or crossed pieces of 64 streams read by 64 threads."""
    with Runtime(address, store="off") as rt, ThreadPoolExecutor(STREAMS) as pool:

        def ask(number: int) -> int:
            content = [{"role": "user", "content": str(number)}]
            got = "".join(delta.text for delta in rt.stream(content)).split()
            expected = [f"{number}:{piece}" for piece in range(PIECES)]
            return sum(a != b for a, b in zip(got, expected, strict=False)) + abs(len(got) - len(expected))

        wrong = sum(pool.map(ask, range(STREAMS)))
    return Figure(f"wrong pieces of {STREAMS * PIECES} in {STREAMS} streams at once", wrong, 0, "lower")


@contextmanager
def counting_server() -> Iterator[str]:
    """A server on loopback that answers a chat with its own text and a count, on a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(_serve, "127.0.0.1", 0, backlog=256), loop).result()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next((int(h.split(":")[1]) for h in head.splitlines() if h.lower().startswith("content-length:")), 0)
    body = json.loads(await reader.readexactly(length)) if length else {}
    if "messages" not in body:
        found = json.dumps({"data": [{"id": "m"}]}).encode() if "/v1/models" in head else b""
        status = "200 OK" if found else "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(found)}\r\nconnection: close\r\n\r\n".encode() + found)
    else:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for piece in range(PIECES):
            text = f"{body['messages'][0]['content']}:{piece} "
            writer.write(f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
    await writer.drain()
    writer.close()


if __name__ == "__main__":
    main()
