"""LlamaIndex tools as the runtime's tool dicts, and the calls in an answer as tool selections."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.llms.llm import ToolSelection

from llama_index.llms.pinfold.errors import NoToolCallError
from pinfold.errors import InvalidRequestError

if TYPE_CHECKING:
    from llama_index.core.tools.types import BaseTool

__all__ = ["resolve_tool_choice", "runtime_tools", "tool_selections"]


def runtime_tools(tools: Sequence[BaseTool | dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools as OpenAI-style dicts; dicts pass as they are.

    A name is kept to the letter: LlamaIndex looks the tool up by it when the call comes back.
    """
    return [tool if isinstance(tool, dict) else _runtime_tool(tool) for tool in tools]


def _runtime_tool(tool: BaseTool) -> dict[str, Any]:
    metadata = tool.metadata
    return {
        "type": "function",
        "function": {
            "name": metadata.get_name(),
            "description": metadata.description,
            "parameters": metadata.get_parameters_dict(),
        },
    }


def resolve_tool_choice(choice: Any, *, required: bool, tools: Sequence[Any]) -> Any:
    """One choice out of LlamaIndex's two settings; None if there are no tools to choose from.

    Raises:
        InvalidRequestError: the two contradict each other, or a call is wanted and there are no tools.
    """
    forced = required or choice not in (None, "auto", "none")
    if not tools:
        if forced:
            msg = "A tool call is required (tool_required, tool_choice), but no tools were given. Pass tools."
            raise InvalidRequestError(msg)
        return None
    if required and choice == "none":
        msg = "tool_required=True and tool_choice='none' contradict each other. Leave one of them out."
        raise InvalidRequestError(msg)
    if choice == "any" or (required and choice in (None, "auto")):
        return "required"
    return "auto" if choice is None else choice


def tool_selections(message: ChatMessage, *, error_on_none: bool) -> list[ToolSelection]:
    """The calls of an answer that can be run.

    A call whose arguments are no JSON object is left out: running its tool without them could do harm.

    Raises:
        NoToolCallError: there is none, and `error_on_none` is set.
    """
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    selections, broken = [], [str(call.get("text")) for call in message.additional_kwargs.get("invalid_tool_calls", ())]
    for block in blocks:
        arguments = _arguments(block.tool_kwargs)
        if arguments is None:
            broken.append(f"{block.tool_name}: {block.tool_kwargs}")
        else:
            selection = ToolSelection(
                tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=arguments
            )
            selections.append(selection)
    if error_on_none and not selections:
        raise NoToolCallError(_nothing_to_run(message, broken))
    return selections


def _arguments(given: dict[str, Any] | str) -> dict[str, Any] | None:
    if isinstance(given, dict):
        return given
    try:
        decoded = json.loads(given or "{}")
    except json.JSONDecodeError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _nothing_to_run(message: ChatMessage, broken: list[str]) -> str:
    remedy = "Pass tool_required=True to force a well-formed call, or error_on_no_tool_call=False to allow none."
    if broken:
        return f"The model tried to call a tool, but the call is malformed: {'; '.join(broken)!r}. {remedy}"
    return f"The model answered without calling a tool: {message.content or ''!r}. {remedy}"
