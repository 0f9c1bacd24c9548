"""Six agents taking turns, each with a long system prompt of its own: time to first token, Pinfold and its peers."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from contextlib import ExitStack

from bare import BareLlama
from common import Figure, Report, command, median, model_path, paired, parser, progress, settle, table
from peers import ApartPeer, BarePeer, LlamaCppPythonPeer, LlamaServerPeer, Peer, PinfoldPeer, Turn

from pinfold import Runtime

PINFOLD, PINNED = "pinfold", "pinfold, prompts pinned before"
SERVER = "llama-server, a slot for each agent"
BARE, BARE_APART = "bare llama_decode, shared cells", "bare llama_decode, cells of its own"
RAM_CACHE, NO_CACHE = "llama-cpp-python, LlamaRAMCache", "llama-cpp-python, no cache"
NAMES = ("Aldous", "Brenna", "Cyril", "Dagmar", "Edmund", "Freya", "Gustav", "Hilde")
WHO = ("clerk", "pilot", "warden", "keeper", "courier", "surveyor", "broker", "miller", "archivist", "engineer")
WHEN = ("at dawn", "after the bell", "before the tide", "on market days", "in heavy fog", "once a week", "when asked")
DOES = ("records", "checks", "returns", "counts", "seals", "forwards", "repairs", "weighs", "copies", "refuses")
WHAT = ("ledger", "lantern", "cargo", "permit", "map", "anchor", "barrel", "letter", "compass", "invoice")
WHERE = ("harbour office", "north gate", "lower mill", "stone bridge", "customs hall", "old library", "river dock")
QUESTIONS = (
    (
        "A letter has come from the customs hall with two seals, and nobody signed for it. Which of your rules applies "
        "here, and what is the first thing that you would do about it this morning?"
    ),
    (
        "The surveyor disagrees and says that the barrel was counted twice at the lower mill. Tell me in one sentence "
        "how you would settle this, and which entry of the ledger you would look at."
    ),
    (
        "It is late and the fog is heavy, so the courier cannot leave before the bell. Write the short note that you "
        "would pin to the door of the harbour office for whoever comes in first tomorrow."
    ),
)
N_CTX = 2048
SLOTS = 8
CELLS = N_CTX * SLOTS

# Of each peer, turn by turn, agent by agent.
Turns = dict[str, list[list[Turn]]]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--agents", type=int, default=6, help=f"at most {len(NAMES)}")
    options.add_argument("--prompt", type=int, default=1500, help="tokens of a system prompt")
    options.add_argument("--answer", type=int, default=16, help="tokens of an answer")
    args = options.parse_args()
    if not 1 <= args.agents <= len(NAMES):
        options.error(f"--agents must be from 1 to {len(NAMES)}")
    with ExitStack() as opened:
        runtime = open_runtime(args)
        systems = [system_prompt(runtime, agent, args.prompt) for agent in range(args.agents)]
        peers = open_peers(args, runtime, systems)
        for peer in peers:
            opened.callback(peer.close)
        turns = take_turns(runtime, peers, systems)
    figures, tables = evaluate(turns)
    Report(command("agents.py", options, args), args.model, figures, tables).print(as_json=args.json)


def open_runtime(args: argparse.Namespace) -> Runtime:
    return Runtime(args.model, n_ctx=N_CTX, kv_cells=CELLS, n_threads=args.threads, store="off")


def open_peers(args: argparse.Namespace, runtime: Runtime, systems: Sequence[str]) -> list[Peer]:
    """Everyone who takes part, ready to go; the pinned one has its pins already."""
    path, threads, answer = model_path(args.model), args.threads, args.answer
    return [
        ApartPeer(PINFOLD, open_pinfold, PINFOLD, args, ()),
        ApartPeer(BARE, open_bare, BARE, args, True),
        LlamaServerPeer(SERVER, path, threads=threads, n_ctx=N_CTX, slots=SLOTS, answer=answer),
        ApartPeer(PINNED, open_pinfold, PINNED, args, systems),
        ApartPeer(BARE_APART, open_bare, BARE_APART, args, False),
        ApartPeer(RAM_CACHE, open_llama, RAM_CACHE, args, True),
        ApartPeer(NO_CACHE, open_llama, NO_CACHE, args, False),
    ]


def open_pinfold(name: str, args: argparse.Namespace, pinned: Sequence[str]) -> Peer:
    runtime = open_runtime(args)
    for agent, system in enumerate(pinned):
        runtime.pin([{"role": "system", "content": system}], name=NAMES[agent])
    return PinfoldPeer(name, runtime, args.answer)


def open_bare(name: str, args: argparse.Namespace, shared: bool) -> Peer:
    path = model_path(args.model)
    bare = BareLlama(path, threads=args.threads, cells=CELLS, sequences=SLOTS, unified=shared)
    return BarePeer(name, bare, args.answer)


def open_llama(name: str, args: argparse.Namespace, cache: bool) -> Peer:
    path = model_path(args.model)
    return LlamaCppPythonPeer(name, path, threads=args.threads, n_ctx=N_CTX, cache=cache, answer=args.answer)


def system_prompt(runtime: Runtime, agent: int, tokens: int) -> str:
    """The rules of one agent, always the same, and other rules than any other agent's from the first word on."""
    draw = random.Random(agent)  # noqa: S311 - text, no secret
    parts = [f"{NAMES[agent]} is the one who answers here, and these are the rules of the house."]
    for number in range(1, tokens // 10 + 1):
        who, when, does, what, where = (draw.choice(words) for words in (WHO, WHEN, DOES, WHAT, WHERE))
        parts.append(f"Rule {number}: {when}, the {who} {does} the {what} at the {where}.")
    return runtime.detokenize(runtime.tokenize(" ".join(parts))[:tokens])


def take_turns(runtime: Runtime, peers: Sequence[Peer], systems: Sequence[str]) -> Turns:
    """Agent by agent, turn by turn, all peers one after the other, each with the history of its own answers."""
    chats = {peer.name: [[{"role": "system", "content": system}] for system in systems] for peer in peers}
    turns: Turns = {peer.name: [[] for _ in QUESTIONS] for peer in peers}
    for number, question in enumerate(QUESTIONS):
        for agent in range(len(systems)):
            by = agent % len(peers)
            for peer in [*peers[by:], *peers[:by]]:
                chat = chats[peer.name][agent]
                chat.append({"role": "user", "content": question})
                tokens = runtime._backend.renderer.render(chat, None).tokens
                settle()
                turn = peer.turn(agent, chat, tokens)
                chat.append({"role": "assistant", "content": turn.text})
                turns[peer.name][number].append(turn)
                did = f"{turn.ttft_s * 1e3:.0f} ms, {turn.computed} tokens"
                progress(f"turn {number + 1}, {NAMES[agent]}, {peer.name}: {did}")
    return turns


def evaluate(turns: Turns) -> tuple[list[Figure], list[str]]:
    """The figures with targets, and the tables."""
    warm = {name: [turn for number in numbers[1:] for turn in number] for name, numbers in turns.items()}
    first = {name: numbers[0] for name, numbers in turns.items()}
    check_same_work(warm)
    figures = [
        Figure("warm turn, pinfold / llama-server", ratio(warm[PINFOLD], warm[SERVER]), 1.05, "lower"),
        Figure("warm turn, pinned, pinfold / llama-server", ratio(warm[PINNED], warm[SERVER]), 1.05, "lower"),
        Figure("warm turn, pinfold / bare prefill of the new tokens", ratio(warm[PINFOLD], warm[BARE]), 1.10, "lower"),
    ]
    return figures, [turns_table(turns), overhead_table(warm), prefill_table(first)]


def check_same_work(warm: dict[str, list[Turn]]) -> None:
    """Refuses to compare peers that did not compute about the same number of tokens."""
    counts = {name: median(turn.computed for turn in warm[name]) for name in (PINFOLD, PINNED, SERVER, BARE)}
    if max(counts.values()) > 1.05 * min(counts.values()):
        msg = f"The peers computed different numbers of tokens in a warm turn, so their times say nothing: {counts}"
        raise SystemExit(msg)


def ratio(ours: Sequence[Turn], theirs: Sequence[Turn]) -> float:
    """Median of the ratios of two peers' times to first token, pair by pair."""
    return paired([turn.ttft_s for turn in ours], [turn.ttft_s for turn in theirs])


def turns_table(turns: Turns) -> str:
    """Milliseconds to the first token, tokens computed, and what Pinfold needs of a peer's time, by turn."""
    rows = []
    for name, numbers in turns.items():
        times = [f"{median(turn.ttft_s for turn in number) * 1e3:.0f}" for number in numbers]
        computed = " / ".join(f"{median(turn.computed for turn in number):.0f}" for number in numbers)
        shares = [f"{ratio(ours, theirs):.3f}" for ours, theirs in zip(turns[PINFOLD], numbers, strict=True)]
        rows.append((name, *times, computed, *shares))
    count = range(1, len(QUESTIONS) + 1)
    head = (
        "ms to first token",
        *(f"turn {i}" for i in count),
        "tokens computed",
        *(f"pinfold / it, {i}" for i in count),
    )
    return table(head, rows)


def overhead_table(warm: dict[str, list[Turn]]) -> str:
    """What a warm turn costs beyond computing its new tokens with the library that each runtime is built on."""
    rows = []
    for name, engine in ((PINFOLD, BARE), (PINNED, BARE), (SERVER, SERVER)):
        total = [turn.ttft_s for turn in warm[name]]
        alone = [turn.engine_s or 0.0 for turn in warm[engine]]
        beyond = median(a - b for a, b in zip(total, alone, strict=True))
        cells = (f"{median(total) * 1e3:.1f}", f"{median(alone) * 1e3:.1f}", f"{beyond * 1e3:.1f}")
        rows.append((name, *cells, f"{paired(total, alone):.3f}"))
    return table(("warm turn", "ms to first token", "its library's prefill, ms", "beyond it, ms", "ratio"), rows)


def prefill_table(first: dict[str, list[Turn]]) -> str:
    """Speed of computing a whole prompt: the libraries' builds differ, and this says by how much."""
    rows = [
        (name, f"{median(turn.computed / (turn.engine_s or turn.ttft_s) for turn in first[name]):.0f}")
        for name in (PINFOLD, BARE, BARE_APART, SERVER, NO_CACHE)
    ]
    return table(("whole prompt", "tok/s"), rows)


if __name__ == "__main__":
    main()
