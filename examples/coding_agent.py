"""Three agents mend a small project, and share one long prompt that is computed once.

    python examples/coding_agent.py                                  # the embedded model: tiny, shows the mechanics
    python examples/coding_agent.py --model qwen2.5-coder-1.5b.gguf  # a model that can do the task

A finder, a fixer and a reviewer work on a copy of examples/workspace, in which one test fails. Their system prompt and
tools are pinned by the first turn; every later turn of every agent goes on from there. For each turn this prints where
the prompt came from, how much of it was not computed again, the time to the first token and the speed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coding_agent_prompt import AFTER_THOUGHT, PLANS, QUESTION, REFUSED, ROLES, SYSTEM_PROMPT, THINK, next_step
from coding_agent_tools import FILE_FOLLOWS, Workspace
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelCallLimitMiddleware, hook_config
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langchain_pinfold import ChatPinfold, PinfoldPromptCachingMiddleware
from pinfold import PinfoldError, Runtime

EMBEDDED_MODEL = "smollm2"
MAX_ANSWER_TOKENS = 400


class FollowThePlan(AgentMiddleware[Any, Any, Any]):
    """Says what kind of step comes next and has the grammar hold to it; what to read, write and report is the model's.

    A refused call is made again.
    """

    def __init__(self, plan: tuple[str, ...]) -> None:
        super().__init__()
        self.plan = plan

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - LangChain's signature
        """Asks for a thought, where one comes next."""
        return {"messages": [HumanMessage(QUESTION)]} if self.next_step(state["messages"]) == THINK else None

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        step = self.next_step(request.messages)
        return handler(request.override(tool_choice="none" if step == THINK else step))

    @hook_config(can_jump_to=["model"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - LangChain's signature
        """Goes on after a thought, which without a call would end the agent."""
        *before, last = state["messages"]
        if self.next_step(before) != THINK or last.tool_calls:
            return None
        return {"messages": [HumanMessage(AFTER_THOUGHT)], "jump_to": "model"}

    def next_step(self, messages: list[BaseMessage]) -> str:
        return next_step(self.plan, done_in(messages))


def done_in(messages: list[BaseMessage]) -> Iterator[tuple[str, str]]:
    """The steps after the task: thoughts, each of which a prompt to go on follows, and calls."""
    for message in messages[1:]:
        if isinstance(message, HumanMessage) and message.text == AFTER_THOUGHT:
            yield THINK, ""
        elif isinstance(message, ToolMessage):
            yield REFUSED if message.status == "error" else str(message.name), message.text


class Console:
    """Prints what happens, for people or as one JSON object a line."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def say(self, text: str) -> None:
        if not self.as_json:
            print(text, flush=True)

    def turn(self, agent: str, message: AIMessage) -> None:
        call = message.tool_calls[0] if message.tool_calls else None
        what = f"{call['name']}({_short(call['args'])})" if call else _thought(message)
        self.step(agent, call["name"] if call else None, what, message.response_metadata["pinfold"])

    def step(self, agent: str, call: str | None, what: str, report: dict[str, Any]) -> None:
        usage, cache, timings = report["usage"], report["cache"], report["timings"]
        fact = {
            "agent": agent,
            "call": call,
            "hit": cache["hit_kind"],
            "cached_tokens": usage["cached_tokens"],
            "prompt_tokens": usage["prompt_tokens"],
            "ttft_s": round(timings["ttft_s"], 3),
            "tokens_per_s": round(timings["decode_tps"] or 0.0, 1),  # a server may not count
        }
        if self.as_json:
            print(json.dumps(fact), flush=True)
            return
        reused = f"{_count(usage['cached_tokens'])} of {_count(usage['prompt_tokens'])} tokens cached"
        speed = f"TTFT {timings['ttft_s']:6.2f} s  {fact['tokens_per_s']:6.1f} tok/s"
        print(f"{agent:<9} {cache['hit_kind']:<9} {reused}  {speed}  {what}", flush=True)

    def end(self, facts: dict[str, Any], text: str) -> None:
        print(json.dumps(facts) if self.as_json else text, flush=True)


def _count(tokens: int | None) -> str:
    return f"{'?' if tokens is None else tokens:>5}"


def _short(arguments: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return text if len(text) <= 60 else text[:57] + "..."


def _thought(message: AIMessage) -> str:
    if message.invalid_tool_calls:
        return "a call that is none: " + message.response_metadata["pinfold"]["invalid_tool_calls"][0]["error"]
    return f"thinks aloud, {len(message.text.split())} words"


def run_agent(model: ChatPinfold, workspace: Workspace, name: str, task: str, steps: int) -> Iterator[BaseMessage]:
    """The messages of one agent's work, as they come, up to its report."""
    agent = create_agent(
        model,
        workspace.tools(),
        system_prompt=SYSTEM_PROMPT,
        middleware=[
            PinfoldPromptCachingMiddleware(ttl="1h"),
            FollowThePlan(PLANS[name]),
            ModelCallLimitMiddleware(run_limit=steps, exit_behavior="end"),
        ],
        name=name,
    )
    for update in agent.stream({"messages": [HumanMessage(task)]}, stream_mode="updates"):
        for change in update.values():
            for message in (change or {}).get("messages", []):
                yield message
                if is_report(message):
                    return


def is_report(message: BaseMessage) -> bool:
    """Whether it is a report that was accepted: the end of an agent's work."""
    return isinstance(message, ToolMessage) and message.name == "report" and message.status == "success"


def run_team(model: ChatPinfold, workspace: Workspace, console: Console, steps: int) -> None:
    """Finder, fixer, reviewer: each is told what the one before reported."""
    report = "Nobody has looked at the project yet."
    for name, task in ROLES.items():
        console.say("")
        said = ""
        for message in run_agent(model, workspace, name, task.format(report=report), steps):
            if isinstance(message, AIMessage) and "pinfold" in message.response_metadata:
                console.turn(name, message)
            elif is_report(message):
                said = message.text
        report = said or f"The {name} did not get as far as a report."
        console.say(f"{name} reports: {report.partition(FILE_FOLLOWS)[0]}")


def finish(runtime: Runtime, workspace: Workspace, console: Console, *, embedded: bool) -> int:
    """Runs the tests a last time and says how it ended. The exit code is 0 if they pass."""
    passed, output = workspace.run_tests()
    if passed:
        text = "\nSolved: all tests of the workspace pass."
    elif embedded:
        text = (
            "\nNot solved: a test still fails. That is expected: the embedded model has 135 million parameters and "
            "shows the mechanics only.\nFor a model that can program use --model PATH, such as "
            "Qwen2.5-Coder-1.5B-Instruct."
        )
    else:
        text = f"\nNot solved: a test of the workspace still fails.\n{output}"
    pins = [{"name": pin.name, "tokens": pin.tokens, "hits": pin.hits} for pin in runtime.pins()]
    console.say("\n" + "\n".join(f"pin {p['name']}: {p['tokens']} tokens, used {p['hits']} times" for p in pins))
    console.end({"solved": passed, "pins": pins}, text)
    return 0 if passed or embedded else 1


def run_on_a_copy(description: str, run: Callable[[argparse.Namespace, Workspace, Console], int]) -> int:
    """Reads the options that all coding agents have, and has `run` work on a copy of the workspace."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--model", default=EMBEDDED_MODEL, help="an alias, a .gguf file, a Hugging Face id or a server's address"
    )
    parser.add_argument("--engine", default="auto", help="the engine to run it on (default: auto)")
    parser.add_argument("--workspace", type=Path, default=here / "workspace", help="the project; it is copied first")
    parser.add_argument("--max-steps", type=int, default=8, help="most turns of each agent (default: 8)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line in place of text")
    options = parser.parse_args()
    if not options.workspace.is_dir():
        parser.error(f"--workspace {options.workspace} is no folder")
    if options.max_steps < 1:
        parser.error("--max-steps must be at least 1")

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "workspace"
        shutil.copytree(options.workspace, copy, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            return run(options, Workspace(copy), Console(as_json=options.json))
        except PinfoldError as e:
            print(f"{parser.prog}: {e}", file=sys.stderr)
            return 2


def main(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Runs the team."""
    model = ChatPinfold(model=options.model, engine=options.engine, max_tokens=MAX_ANSWER_TOKENS)
    run_team(model, workspace, console, options.max_steps)
    return finish(model.get_runtime(), workspace, console, embedded=options.model == EMBEDDED_MODEL)


if __name__ == "__main__":
    sys.exit(run_on_a_copy("Three agents mend a small project on one pinned prompt.", main))
