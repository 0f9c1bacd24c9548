"""LangChain's tools and tool choices in the runtime's form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from langchain_pinfold.messages import cache_control_of
from pinfold.errors import InvalidRequestError, ToolSchemaError, UnsupportedModeError

__all__ = ["ToolLike", "to_runtime_choice", "to_runtime_tools"]

ToolLike = dict[str, Any] | type | Callable[..., Any] | BaseTool
ToolChoice = str | dict[str, Any] | bool | None

_CHOICES = {"auto": "auto", "none": "none", "any": "required", "required": "required"}


def to_runtime_tools(tools: Sequence[ToolLike], *, strict: bool | None = None) -> list[dict[str, Any]]:
    """Tools as ``{"type": "function", "function": {...}}``, with ``cache_control`` where the tool asks for a pin.

    `strict` says for all of them whether their arguments must fit; None leaves it to what each says of itself.

    Raises:
        ToolSchemaError: something that is no tool.
        UnsupportedModeError: a tool that runs at a provider, such as web search.
    """
    return [_to_runtime(tool, strict) for tool in tools]


def _to_runtime(tool: ToolLike, strict: bool | None) -> dict[str, Any]:
    try:
        converted = convert_to_openai_tool(tool)
    except (ValueError, TypeError, KeyError) as e:
        msg = f"This is no tool: {tool!r} ({e}). Pass a function, a BaseTool, a pydantic class or an OpenAI-style dict."
        raise ToolSchemaError(msg) from e
    if converted.get("type") != "function":
        msg = (
            f"Tool {converted.get('name') or converted.get('type')!r} is carried out by its provider, which a local "
            f"model does not have. Pass a function of your own instead."
        )
        raise UnsupportedModeError(msg)
    function = dict(converted["function"])
    if strict is not None:
        function["strict"] = strict
    result: dict[str, Any] = {"type": "function", "function": function}
    mark = cache_control_of(tool) if isinstance(tool, dict) else cache_control_of({"extras": _extras(tool)})
    if mark:
        result["cache_control"] = mark
    return result


def _extras(tool: Any) -> dict[str, Any]:
    return (tool.extras or {}) if isinstance(tool, BaseTool) else {}


def to_runtime_choice(choice: ToolChoice, tools: Sequence[dict[str, Any]]) -> str:
    """``auto``, ``none``, ``required`` or the name of one of `tools` (in the runtime's form).

    None and False leave the choice to the model, True demands some call. Dicts are taken in OpenAI's and Anthropic's
    forms.

    Raises:
        InvalidRequestError: a choice of another form, or a name that no tool has.
    """
    if choice is None or isinstance(choice, bool):
        return "required" if choice else "auto"
    wanted = choice
    if isinstance(choice, dict):
        wanted = (choice.get("function") or choice).get("name") or choice.get("type", "")
    names = [tool["function"]["name"] for tool in tools]
    if wanted in names:
        return str(wanted)
    if wanted in _CHOICES:
        return _CHOICES[wanted]
    msg = (
        f"tool_choice={choice!r} is neither one of {', '.join(_CHOICES)} nor a tool's name. Tools: {', '.join(names)}."
    )
    raise InvalidRequestError(msg)
