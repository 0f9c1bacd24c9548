"""The team of `coding_agent.py` as a graph of LangGraph: one node for each agent, and inside it a loop of its own.

    python examples/langgraph_agents.py
    python examples/langgraph_agents.py --model qwen2.5-coder-1.5b.gguf

Nothing but a `cache_control` mark is needed for the agents to share what their prompts have in common: it is pinned by
the first turn, and every other turn of every agent goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from typing import Annotated, Any, TypedDict

from coding_agent import (
    EMBEDDED_MODEL,
    MAX_ANSWER_TOKENS,
    Console,
    done_in,
    finish,
    is_report,
    run_on_a_copy,
)
from coding_agent_prompt import AFTER_THOUGHT, PLANS, QUESTION, ROLES, SYSTEM_PROMPT, THINK, next_step
from coding_agent_tools import FILE_FOLLOWS, Workspace
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode

from langchain_pinfold import ChatPinfold

SYSTEM = SystemMessage([{"type": "text", "text": SYSTEM_PROMPT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}])


class Work(TypedDict):
    """What one agent has seen and said, from its task on."""

    messages: Annotated[list[AnyMessage], add_messages]


class Team(TypedDict):
    """What the last agent reported."""

    report: str


def agent_graph(model: ChatPinfold, workspace: Workspace, name: str, console: Console) -> Any:
    """One agent: it speaks, its call is carried out, until its report is accepted."""
    tools = workspace.tools()

    def speak(work: Work) -> Work:
        step = next_step(PLANS[name], done_in(work["messages"]))
        asked: list[AnyMessage] = [HumanMessage(QUESTION)] if step == THINK else []
        bound = model.bind_tools(tools, tool_choice="none" if step == THINK else step)
        answer = bound.invoke([SYSTEM, *work["messages"], *asked])
        console.turn(name, answer)
        return {"messages": [*asked, answer] if answer.tool_calls else [*asked, answer, HumanMessage(AFTER_THOUGHT)]}

    graph = StateGraph(Work)
    graph.add_node("speak", speak)
    graph.add_node("act", ToolNode(tools))
    graph.add_edge(START, "speak")
    graph.add_conditional_edges("speak", lambda work: "act" if work["messages"][-1].type == "ai" else "speak")
    graph.add_conditional_edges("act", lambda work: END if is_report(work["messages"][-1]) else "speak")
    return graph.compile()


def team_graph(model: ChatPinfold, workspace: Workspace, console: Console, steps: int) -> Any:
    """The three agents, one after the other."""

    def node(name: str, task: str) -> Any:
        agent = agent_graph(model, workspace, name, console)

        def work(team: Team) -> Team:
            console.say("")
            last: list[AnyMessage] = []
            given = {"messages": [HumanMessage(task.format(report=team["report"]))]}
            # Each step is two of the graph's; one that reaches the limit is left where it is.
            for state in agent.stream(given, {"recursion_limit": 100}, stream_mode="values"):
                last = state["messages"]
                if sum(message.type == "ai" for message in last) >= steps and last[-1].type != "ai":
                    break
            report = last[-1].text if is_report(last[-1]) else f"The {name} did not get as far as a report."
            console.say(f"{name} reports: {report.partition(FILE_FOLLOWS)[0]}")
            return {"report": report}

        return work

    graph = StateGraph(Team)
    for name, task in ROLES.items():
        graph.add_node(name, node(name, task))
    for before, after in zip([START, *ROLES], [*ROLES, END], strict=True):
        graph.add_edge(before, after)
    return graph.compile()


def main(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Runs the graph."""
    model = ChatPinfold(model=options.model, engine=options.engine, max_tokens=MAX_ANSWER_TOKENS)
    team_graph(model, workspace, console, options.max_steps).invoke({"report": "Nobody has looked at it yet."})
    return finish(model.get_runtime(), workspace, console, embedded=options.model == EMBEDDED_MODEL)


if __name__ == "__main__":
    sys.exit(run_on_a_copy("A LangGraph of three agents that mend a small project on one pinned prompt.", main))
