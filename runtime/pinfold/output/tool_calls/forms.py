"""How a family writes its calls, as a grammar needs to know it: what stands before, between and after.

Families that write arguments in a notation of their own are not here; a forced call of theirs has the Hermes form.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["HERMES", "ArgumentMarks", "CallForm", "call_form"]


def _in_quotes(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ArgumentMarks:
    """Arguments one by one: `before_name`, the name, `before_value`, the value, `closing`, `after`.

    A value is text without quotes, or JSON where its schema has no text. Text holds none of `marks`.
    """

    before_name: str
    before_value: str
    closing: str
    after: str
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallForm:
    """One way to write calls. An answer of calls is `opening`, the calls with `separator` between them, `closing`.

    A call is `before`, the tool's name as `name` writes it, `between`, the arguments, `after`.

    Attributes:
        family: whose parser reads it, a key of `formats.FORMATS`.
        mark: what no document begins with and every answer of calls does; "" where there is no such mark.
        separator: None where an answer holds one call.
        document: what stands before an answer that is no call.
        arguments: how they are written where they are not one JSON object.
    """

    family: str
    mark: str
    before: str
    between: str
    after: str
    name: Callable[[str], str] = _in_quotes
    separator: str | None = "\n"
    opening: str = ""
    closing: str = ""
    document: str = ""
    arguments: ArgumentMarks | None = None


HERMES = CallForm(
    "hermes", mark="<tool_call>", before='<tool_call>\n{"name": ', between=', "arguments": ', after="}\n</tool_call>"
)
_HARMONY = CallForm(
    "harmony",
    mark="<|channel|>commentary",
    before="<|channel|>commentary to=functions.",
    between=" <|constrain|>json<|message|>",
    after="",
    name=str,
    separator=None,
    document="<|channel|>final<|message|>",
)
_LLAMA3 = CallForm("llama3", mark="", before='{"name": ', between=', "parameters": ', after="}", separator=None)
_MISTRAL = CallForm(
    "mistral",
    mark="[TOOL_CALLS]",
    opening="[TOOL_CALLS][",
    before='{"name": ',
    between=', "arguments": ',
    after="}",
    separator=", ",
    closing="]",
)
_MISTRAL_NAMED = CallForm(
    "mistral",
    mark="[TOOL_CALLS]",
    before="[TOOL_CALLS]",
    between="[ARGS]",
    after="",
    name=str,
    separator="",
)
_TAGS = ("<tool_call>", "</tool_call>")
_QWEN3_CODER = CallForm(
    "qwen3-coder",
    mark="<tool_call>",
    before="<tool_call>\n<function=",
    between=">\n",
    after="</function>\n</tool_call>",
    name=str,
    arguments=ArgumentMarks(
        "<parameter=", ">\n", "\n</parameter>", "\n", ("<parameter=", "</parameter>", "</function>", *_TAGS)
    ),
)
_GLM = CallForm(
    "glm",
    mark="<tool_call>",
    before="<tool_call>",
    between="\n",
    after="</tool_call>",
    name=str,
    arguments=ArgumentMarks(
        "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "\n", ("<arg_key>", "</arg_value>", *_TAGS)
    ),
)
_BAR = "\uff5c"
_CALLS_BEGIN, _CALLS_END, _CALL_BEGIN, _CALL_END, _SEP = (
    f"<{_BAR}tool▁{what}{_BAR}>" for what in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
_DEEPSEEK = CallForm(
    "deepseek",
    mark=_CALLS_BEGIN,
    opening=_CALLS_BEGIN,
    before=_CALL_BEGIN,
    between=_SEP,
    after=_CALL_END,
    name=str,
    separator="",
    closing=_CALLS_END,
)
_DEEPSEEK_FENCED = CallForm(
    "deepseek",
    mark=_CALLS_BEGIN,
    opening=_CALLS_BEGIN,
    before=f"{_CALL_BEGIN}function{_SEP}",
    between="\n```json\n",
    after=f"\n```{_CALL_END}",
    name=str,
    separator="\n",
    closing=_CALLS_END,
)
_ONE_VERSION = {form.family: form for form in (_HARMONY, _LLAMA3, _QWEN3_CODER, _GLM)}


def call_form(family: str, template: str) -> CallForm:
    """The family's own form, in the version that the source of its chat template writes; Hermes where there is none."""
    if family == "mistral":
        return _MISTRAL_NAMED if "[ARGS]" in template else _MISTRAL
    if family == "deepseek":
        return _DEEPSEEK_FENCED if "```json" in template else _DEEPSEEK
    return _ONE_VERSION.get(family, HERMES)
