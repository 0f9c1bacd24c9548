"""LangChain's tools and tool choices in the runtime's form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from langchain_pinfold.messages import cache_control_of
from pinfold.errors import InvalidRequestError, ToolSchemaError, UnsupportedModeError

__all__ = ["ToolLike", "any_strict", "check_guarantees", "to_runtime_choice", "to_runtime_tools"]

ToolLike = dict[str, Any] | type | Callable[..., Any] | BaseTool
ToolChoice = str | dict[str, Any] | bool | None

_CHOICES = {"auto": "auto", "none": "none", "any": "required", "required": "required"}


def to_runtime_tools(tools: Sequence[ToolLike]) -> list[dict[str, Any]]:
    """Tools as ``{"type": "function", "function": {...}}``, with ``cache_control`` where the tool asks for a pin.

    Raises:
        ToolSchemaError: something that is no tool.
        UnsupportedModeError: a tool that runs at a provider, such as web search.
    """
    return [_to_runtime(tool) for tool in tools]


def _to_runtime(tool: ToolLike) -> dict[str, Any]:
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
    function = {key: value for key, value in converted["function"].items() if key != "strict"}
    result: dict[str, Any] = {"type": "function", "function": function}
    mark = cache_control_of(tool) if isinstance(tool, dict) else cache_control_of({"extras": _extras(tool)})
    if mark:
        result["cache_control"] = mark
    return result


def _extras(tool: Any) -> dict[str, Any]:
    return (tool.extras or {}) if isinstance(tool, BaseTool) else {}


def any_strict(tools: Sequence[ToolLike]) -> bool:
    """Whether a tool in OpenAI's form says ``strict`` of itself."""
    dicts = (tool.get("function", tool) for tool in tools if isinstance(tool, dict))
    return any(function.get("strict") is True for function in dicts)


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


def check_guarantees(*, choice: str, strict: bool | None, parallel_tool_calls: bool | None) -> None:
    """Refuses what the grammar of this request could not hold. A forced call is one call that fits its schema.

    Raises:
        UnsupportedModeError: a guarantee was asked for on calls that the model makes of its own accord.
    """
    if choice != "auto":
        return
    for name, asked in (("strict=True", strict is True), ("parallel_tool_calls=False", parallel_tool_calls is False)):
        if asked:
            msg = (
                f"{name} cannot be guaranteed while the model decides by itself whether to call a tool. "
                f"Force a call with tool_choice='any' or a tool's name, or leave the option out."
            )
            raise UnsupportedModeError(msg)
