"""The team of `coding_agent.py` as an AgentWorkflow of LlamaIndex, in which each agent hands over to the next.

    python examples/llama_index_agents.py
    python examples/llama_index_agents.py --model qwen2.5-coder-1.5b.gguf

The three agents have one system prompt and the same tools, which are computed once. Each begins with its own task and
what was reported to it, and every turn of it goes on from the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
from collections.abc import Sequence
from typing import Any

from coding_agent import EMBEDDED_MODEL, MAX_ANSWER_TOKENS, Console, finish, run_on_a_copy
from coding_agent_prompt import AFTER_THOUGHT, PLANS, QUESTION, REFUSED, ROLES, SYSTEM_PROMPT, THINK, next_step
from coding_agent_tools import Workspace
from langchain_core.messages import ToolMessage
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.core.tools import AsyncBaseTool, FunctionTool
from llama_index.core.workflow import Context, WorkflowRuntimeError
from pydantic import PrivateAttr

from llama_index.llms.pinfold import Pinfold

NEXT = dict(zip(ROLES, [*list(ROLES)[1:], None], strict=True))


class PlannedAgent(FunctionAgent):
    """Follows the plan of its role: the kind of step is given and held by the grammar, all else is the model's."""

    _console: Console = PrivateAttr()
    _done: list[tuple[str, str]] = PrivateAttr(default_factory=list)
    _tasks: dict[str, str] = PrivateAttr()
    _begin: int | None = PrivateAttr(default=None)
    _thoughts: dict[int, list[ChatMessage]] = PrivateAttr(default_factory=dict)  # by the message that they come before

    @classmethod
    def of(cls, name: str, llm: Pinfold, workspace: Workspace, console: Console, tasks: dict[str, str]) -> PlannedAgent:
        """The agent `name` with tools of its own; `tasks` are those of the team, by name, once they are known."""
        # No handoff tool: a report hands over by itself.
        settings = {"system_prompt": SYSTEM_PROMPT, "streaming": False, "can_handoff_to": []}
        agent = cls(name=name, description=f"The {name}.", llm=llm, **settings)
        agent._console, agent._tasks = console, tasks
        agent.tools = [agent._tool(each) for each in workspace.tools()]
        return agent

    async def _get_response(self, current_llm_input: list[ChatMessage], tools: Sequence[AsyncBaseTool]) -> ChatResponse:
        if self._done and self._done[-1][0] == "report":  # the last one: an answer without a call ends the workflow
            return ChatResponse(message=ChatMessage(role="assistant", content=self._done[-1][1]))
        messages = self._own(current_llm_input)
        step = next_step(PLANS[self.name], self._done)
        if step != THINK:
            return await self._ask(messages, tools, step)
        asked = ChatMessage(role="user", content=QUESTION)
        thought = await self._ask([*messages, asked], tools, "none")
        self._done.append((THINK, ""))
        aloud = [asked, thought.message, ChatMessage(role="user", content=AFTER_THOUGHT)]
        self._thoughts[len(current_llm_input)] = aloud
        return await self._ask([*messages, *aloud], tools, next_step(PLANS[self.name], self._done))

    def _own(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """The system prompt, the task, and what this agent has done since: a small model loses itself in more."""
        if self._begin is None:
            self._begin = len(messages)
        own = [messages[0], ChatMessage(role="user", content=self._tasks[self.name])]
        for number, message in enumerate(messages[self._begin :], self._begin):
            own += [*self._thoughts.get(number, []), message]
        return own

    async def _ask(self, messages: list[ChatMessage], tools: Sequence[AsyncBaseTool], choice: str) -> ChatResponse:
        response = await self.llm.achat_with_tools(tools, chat_history=messages, tool_choice=choice)
        calls = self.llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
        call = calls[0] if calls else None
        what = f"{call.tool_name}({', '.join(call.tool_kwargs)})" if call else "thinks aloud"
        self._console.step(self.name, call.tool_name if call else None, what, response.additional_kwargs["pinfold"])
        return response

    def _tool(self, tool: Any) -> FunctionTool:
        """One of the workspace's tools. A report that is accepted hands over to the next agent."""

        async def use(ctx: Context, **arguments: Any) -> str:
            call = {"type": "tool_call", "id": "call", "name": tool.name, "args": arguments}
            answer: ToolMessage = await asyncio.to_thread(tool.invoke, call)
            if answer.status == "error":
                self._done.append((REFUSED, answer.text))
                return answer.text
            self._done.append((tool.name, answer.text))
            return await self._hand_over(ctx, answer.text) if tool.name == "report" else answer.text

        # LlamaIndex reads the arguments from the signature; those of the workspace's function are the right ones.
        own = inspect.signature(tool.func)
        context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)
        use.__signature__ = own.replace(parameters=[context, *own.parameters.values()])  # type: ignore[attr-defined]
        return FunctionTool.from_defaults(
            async_fn=use, name=tool.name, description=tool.description, fn_schema=tool.args_schema
        )

    async def _hand_over(self, ctx: Context, report: str) -> str:
        following = NEXT[self.name]
        if following is not None:
            self._tasks[following] = ROLES[following].format(report=report)
            await ctx.store.set("next_agent", following)
        return report


async def run_team(llm: Pinfold, workspace: Workspace, console: Console, steps: int) -> None:
    """The workflow, up to the last report or as many turns as the agents have together."""
    first = next(iter(ROLES))
    tasks = {first: ROLES[first].format(report="Nobody has looked at the project yet.")}
    agents = [PlannedAgent.of(name, llm, workspace, console, tasks) for name in ROLES]
    workflow = AgentWorkflow(agents=agents, root_agent=first)
    await workflow.run(tasks[first], max_iterations=steps * len(agents))


def main(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Runs the workflow."""
    llm = Pinfold(options.model, engine=options.engine, max_tokens=MAX_ANSWER_TOKENS)
    try:
        asyncio.run(run_team(llm, workspace, console, options.max_steps))
    except WorkflowRuntimeError as e:
        console.say(f"The team stopped: {e}")
    return finish(llm.runtime, workspace, console, embedded=options.model == EMBEDDED_MODEL)


if __name__ == "__main__":
    sys.exit(run_on_a_copy("Three agents of LlamaIndex that mend a small project in one conversation.", main))
