"""A model that can program mends the workspace in all three frameworks, and drafts change none of its calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pinfold import Runtime
from pinfold.results import Completion
from tests.reliability.test_fold_tool_calls import SYSTEM, TOOLS, questions
from tests.support.near_ties import assert_same_or_tie

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["coding_agent", "langgraph_agents", "llama_index_agents"])
def test_the_team_mends_the_workspace(name: str, qwen15: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--model", qwen15, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    *turns, end = map(json.loads, ended.stdout.splitlines())
    assert end["solved"]
    assert all(turn["hit"] != "miss" for turn in turns[1:])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("draft", ["auto", "grammar", "lookup"])
def test_drafts_change_no_call(draft: str, qwen15: str) -> None:
    system = {"role": "system", "content": SYSTEM}
    with Runtime(qwen15, n_ctx=4096, store="off") as rt:
        rt.pin([system], TOOLS, name="clerk")
        for question in questions()[:20]:
            messages = [system, {"role": "user", "content": question}]
            options = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 96}
            rt.chat(messages, max_tokens=1, draft="off")  # both below then begin on the same prefix
            plain, drafted = (written(rt.chat(messages, draft=mode, **options)) for mode in ("off", draft))
            assert_same_or_tie(rt, list(rt._backend.renderer.render(messages, TOOLS).tokens), plain, drafted)


def written(done: Completion) -> str:
    """Its one call, as the model wrote it."""
    (call,) = done.tool_calls
    return f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
