"""What a chat demands of its answer: calls, a document, either, or just text; how that is held and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinfold.chat_options import ChatOptions
from pinfold.decoding.job import ReasoningLimit
from pinfold.engines.base import Tokenizer
from pinfold.errors import InvalidRequestError, UnsupportedModeError
from pinfold.output.marked_arguments import arguments_of
from pinfold.output.parser import Expect, OutputParser
from pinfold.output.reasoning import CHANNELS, THINK, LeadingReasoning
from pinfold.output.tool_calls.forms import HERMES, CallForm, call_form
from pinfold.prompt.renderer import Prompt, PromptRenderer

if TYPE_CHECKING:
    from pinfold.output.constraint import Constraint

__all__ = ["Demands", "leading_reasoning", "response_schema"]


@dataclass(frozen=True)
class Demands:
    """One chat's demands.

    Attributes:
        prompt: has the tools and the choice among them.
        document: the JSON schema of its response_format.
        options: what else was asked for.
        family: the model's tool-call format, a key of `tool_calls.FORMATS`.
        form: how calls are written where a grammar holds them.
        reasoning: what the model may write before its answer.
    """

    prompt: Prompt
    document: Mapping[str, Any] | None
    options: ChatOptions
    family: str
    form: CallForm
    reasoning: LeadingReasoning | None

    @classmethod
    def of(
        cls, prompt: Prompt, renderer: PromptRenderer, family: str, response_format: Any, options: ChatOptions
    ) -> Demands:
        """The demands of a chat whose prompt `renderer` made.

        Raises:
            InvalidRequestError: `response_format` is none.
            UnsupportedModeError: something cannot be held on this model.
        """
        document = response_schema(response_format)
        form = _form(prompt, call_form(family, renderer.template.source), document)
        demands = cls(prompt, document, options, family, form, leading_reasoning(renderer, family))
        if demands._holds_text and (form.family != family or not form.mark):
            asked = "strict" if demands._strict else "parallel_tool_calls=False"
            msg = (
                f"{asked} cannot be held where a model of the family {family!r} decides by itself whether to call "
                f"{', '.join(sorted(demands._strict)) or 'a tool'}. Use tool_choice='required' or a tool's name, or "
                f"leave it out."
            )
            raise UnsupportedModeError(msg)
        return demands

    @property
    def expect(self) -> Expect:
        """What the parser is to look for."""
        if self._forced:
            return "required"
        if not self._may_call:
            return "none"
        return "auto" if self.document is None else "either"

    @property
    def parser(self) -> OutputParser:
        """A fresh parser of the answer."""
        held = self.document is not None or self._forced or self._holds_text
        return OutputParser(
            tools=[tool.spec for tool in self.prompt.tools],
            family=self.family,
            expect=self.expect,
            reasoning_open=self.reasoning is not None and self.reasoning.is_open,
            form=self.form if held else None,
        )

    def constraint(self, tokenizer: Tokenizer) -> Constraint | None:
        """The grammar that holds the answer to it, None where anything is allowed.

        Raises:
            ToolSchemaError: a schema that no grammar can hold to.
            UnsupportedModeError: grammars are not installed.
        """
        if self.document is None and not self._forced and not self._holds_text:
            return None
        grammar_tokenizer = tokenizer.grammar_tokenizer()
        from pinfold.output import constrain

        tools = [tool.spec for tool in self.prompt.tools]
        if self.document is not None and self.expect == "none":
            return constrain.schema_constraint(
                grammar_tokenizer, self.document, form=self.form, reasoning=self.reasoning
            )
        if self._holds_text:
            return constrain.held_text_constraint(
                grammar_tokenizer,
                tools,
                self._strict,
                form=self.form,
                parallel=self._parallel,
                reasoning=self.reasoning,
            )
        return constrain.tool_call_constraint(
            grammar_tokenizer,
            tools,
            self._choice,
            form=self.form,
            parallel=self._parallel,
            document=None if self._forced else self.document,
            reasoning=self.reasoning,
        )

    def reasoning_limit(self, tokenizer: Tokenizer) -> ReasoningLimit:
        """How the answer's reasoning is counted, and what ends it once its budget is used up."""
        reasoning = self.reasoning or LeadingReasoning(
            THINK
        )  # a model may reason though its template knows nothing of it
        marks, budget = reasoning.marks, self.options.reasoning_budget
        ending = f"\n{marks.closing}\n\n" if marks.spaced else marks.closing + marks.resume
        return ReasoningLimit(reasoning, budget, tuple(tokenizer.encode(ending)) if budget is not None else ())

    @property
    def _forced(self) -> bool:
        return self.prompt.tool_choice.mode in ("required", "named")

    @property
    def _may_call(self) -> bool:
        return bool(self.prompt.tools) and self.prompt.tool_choice.mode != "none"

    @property
    def _parallel(self) -> bool:
        """Whether there may be several calls. Of its own accord a small model made to call does not find an end."""
        asked = self.options.parallel_tool_calls
        if self.prompt.tool_choice.mode == "named":
            return False
        return self.expect == "auto" if asked is None else asked

    @property
    def _strict(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.prompt.tools if tool.strict)

    @property
    def _holds_text(self) -> bool:
        """Whether the calls of an answer that is free otherwise are held."""
        return self.expect == "auto" and bool(self._strict or self.options.parallel_tool_calls is False)

    @property
    def _choice(self) -> str | Mapping[str, Any]:
        name = self.prompt.tool_choice.name
        return "required" if name is None else {"type": "function", "function": {"name": name}}


def _form(prompt: Prompt, own: CallForm, document: Any) -> CallForm:
    """The family's own form, or Hermes where that would not hold the calls of this prompt."""
    if document is not None and not own.mark:
        return HERMES  # a call may begin as a document does
    marks, choice = own.arguments, prompt.tool_choice
    if marks is None:
        return own
    held = [tool for tool in prompt.tools if tool.name == choice.name or choice.mode == "required" or tool.strict]
    if document is not None and choice.mode == "auto":
        held = list(prompt.tools)
    return own if all(arguments_of(tool.parameters, marks) is not None for tool in held) else HERMES


def leading_reasoning(renderer: PromptRenderer, family: str) -> LeadingReasoning | None:
    """What a model with this template may write before its answer, as far as the template shows."""
    if family == "harmony":
        return LeadingReasoning(CHANNELS)
    prefix = renderer.generation_prefix
    if prefix.rstrip().endswith(THINK.opening):
        return LeadingReasoning(THINK, is_open=True)
    if THINK.closing in prefix or THINK.closing not in renderer.template.source:
        return None
    return LeadingReasoning(THINK)


def response_schema(response_format: Any) -> Mapping[str, Any] | None:
    """The JSON schema of a response_format, None where there is none.

    Raises:
        InvalidRequestError: its type is neither ``json_object`` nor ``json_schema``, or it lacks its schema.
    """
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "json_object":
        return {"type": "object"}
    inner = response_format.get("json_schema") if kind == "json_schema" else None
    if kind != "json_schema":
        msg = f"response_format={response_format!r}: its type is one of 'json_object', 'json_schema'."
        raise InvalidRequestError(msg)
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if not isinstance(schema, Mapping):
        msg = "response_format of type 'json_schema' needs {'json_schema': {'schema': {...}}}."
        raise InvalidRequestError(msg)
    return schema
