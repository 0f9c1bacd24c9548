"""Answers as objects of a pydantic class. The grammar of the class's schema leaves the model no other answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from typing import Any, TypeVar

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.events.llm import LLMStructuredPredictEndEvent, LLMStructuredPredictStartEvent
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.program.utils import create_flexible_model
from llama_index.core.prompts import PromptTemplate
from llama_index.core.types import PydanticProgramMode
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from llama_index.llms.pinfold.errors import StructuredOutputError

__all__ = ["StructuredPrediction"]

Output = TypeVar("Output", bound=BaseModel)
dispatcher = get_dispatcher(__name__)


class StructuredPrediction(FunctionCallingLLM):
    """structured_predict in its four forms, by schema; another pydantic_program_mode goes LlamaIndex's own way."""

    def structured_predict(
        self,
        output_cls: type[Output],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Output:
        """An object of `output_cls`.

        Raises:
            StructuredOutputError: the answer was cut off, or a validator of the class refused it.
        """
        if not self._by_schema():
            return super().structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
        _announce(output_cls, prompt, prompt_args)
        messages, kwargs = self._structured_request(output_cls, prompt, llm_kwargs, prompt_args)
        return _announced(_parsed(output_cls, self.chat(messages, **kwargs)))

    async def astructured_predict(
        self,
        output_cls: type[Output],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Output:
        """`structured_predict` without blocking the event loop."""
        if not self._by_schema():
            return await super().astructured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
        _announce(output_cls, prompt, prompt_args)
        messages, kwargs = self._structured_request(output_cls, prompt, llm_kwargs, prompt_args)
        return _announced(_parsed(output_cls, await self.achat(messages, **kwargs)))

    def _structured_stream_call(
        self,
        output_cls: type[Output],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Any, None, None]:
        if not self._by_schema():
            return super()._structured_stream_call(output_cls, prompt, llm_kwargs, **prompt_args)
        messages, kwargs = self._structured_request(output_cls, prompt, llm_kwargs, prompt_args)
        return self._stream_objects(output_cls, messages, kwargs)

    def _stream_objects(
        self, output_cls: type[Output], messages: list[ChatMessage], kwargs: dict[str, Any]
    ) -> Generator[BaseModel, None, None]:
        growing = _GrowingObject(output_cls)
        with closing(self.stream_chat(messages, **kwargs)) as responses:
            for response in responses:
                if growing.grown(response):
                    yield growing.value
        yield growing.finished()

    async def _structured_astream_call(
        self,
        output_cls: type[Output],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Any, None]:
        if not self._by_schema():
            return await super()._structured_astream_call(output_cls, prompt, llm_kwargs, **prompt_args)
        messages, kwargs = self._structured_request(output_cls, prompt, llm_kwargs, prompt_args)
        return self._astream_objects(output_cls, messages, kwargs)

    async def _astream_objects(
        self, output_cls: type[Output], messages: list[ChatMessage], kwargs: dict[str, Any]
    ) -> AsyncGenerator[BaseModel, None]:
        growing = _GrowingObject(output_cls)
        async with aclosing(await self.astream_chat(messages, **kwargs)) as responses:
            async for response in responses:
                if growing.grown(response):
                    yield growing.value
        yield growing.finished()

    def _by_schema(self) -> bool:
        return self.pydantic_program_mode == PydanticProgramMode.DEFAULT

    def _structured_request(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None,
        prompt_args: dict[str, Any],
    ) -> tuple[list[ChatMessage], dict[str, Any]]:
        messages = self._extend_messages(prompt.format_messages(llm=self, **prompt_args))
        schema = {"name": output_cls.__name__, "schema": output_cls.model_json_schema()}
        return messages, {**(llm_kwargs or {}), "response_format": {"type": "json_schema", "json_schema": schema}}


class _GrowingObject:
    """The object as far as the answer has come: `output_cls` where it is valid already, else a lenient copy of it."""

    def __init__(self, output_cls: type[BaseModel]) -> None:
        self._output_cls = output_cls
        self._lenient_cls = create_flexible_model(output_cls)
        self._last: ChatResponse | None = None
        self._fields: Any = None
        self.value: BaseModel = self._lenient_cls()

    def grown(self, response: ChatResponse) -> bool:
        """Takes in the next response; True if the object has grown by it."""
        self._last = response
        try:
            fields = from_json(response.message.content or "", allow_partial="trailing-strings")
        except ValueError:
            return False
        if fields == self._fields or not isinstance(fields, dict):
            return False
        self._fields = fields
        try:
            self.value = self._output_cls.model_validate(fields)
        except ValidationError:
            self.value = self._lenient_cls.model_validate(fields)
        return True

    def finished(self) -> BaseModel:
        """The whole object, validated."""
        if self._last is None:
            msg = f"The answer ended before it began; no {self._output_cls.__name__} can be made of it. Ask again."
            raise StructuredOutputError(msg)
        return _parsed(self._output_cls, self._last)


def _parsed(output_cls: type[Output], response: ChatResponse) -> Output:
    text = response.message.content or ""
    try:
        return output_cls.model_validate_json(text)
    except ValidationError as e:
        if (response.raw or {}).get("finish_reason") == "length":
            msg = f"The answer was cut off before its {output_cls.__name__} was complete. Raise max_tokens or n_ctx."
        else:
            msg = f"The answer follows the schema of {output_cls.__name__}, but the class refuses it: {e}"
        raise StructuredOutputError(msg) from e


def _announce(output_cls: type[BaseModel], prompt: PromptTemplate, prompt_args: dict[str, Any]) -> None:
    event = LLMStructuredPredictStartEvent(output_cls=output_cls, template=prompt, template_args=prompt_args)
    dispatcher.event(event)


def _announced(output: Output) -> Output:
    dispatcher.event(LLMStructuredPredictEndEvent(output=output))
    return output
