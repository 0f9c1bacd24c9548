"""`ChatPinfold`: a local chat model whose long prompts are computed once and then reused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

from langchain_pinfold import calls, structured
from langchain_pinfold.answers import PROVIDER, ChunkWriter, to_message
from langchain_pinfold.messages import to_runtime_messages
from langchain_pinfold.settings import PinfoldSettings
from langchain_pinfold.tools import ToolLike, to_runtime_choice, to_runtime_tools
from pinfold import Pin, Runtime
from pinfold.errors import InvalidRequestError
from pinfold.options import RuntimeOptions, is_address

__all__ = ["ChatPinfold"]


class ChatPinfold(PinfoldSettings, BaseChatModel):
    """A local chat model with pinned prompts.

    ::

        model = ChatPinfold(model="smollm2", max_tokens=64)
        answer = model.invoke([SystemMessage(long_prompt), HumanMessage("Hello")])
        answer.usage_metadata["input_token_details"]["cache_read"]  # tokens that were not computed again

    ``cache_control`` on a text block or a tool pins the prompt up to there. Reports on reuse, drafting and times are
    in ``response_metadata["pinfold"]``. Every field can be given for one call too: ``model.invoke(..., top_k=40)``.
    """

    streaming: bool = False
    """Whether `invoke` streams inside, so that callbacks see each token."""
    session: str | None = None
    """Name of the session that requests go on with."""

    # --- the four ways to an answer ---

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        runtime, request = self._runtime_for(kwargs.get("model")), self._request(messages, stop, kwargs)
        done = calls.complete(runtime.chat, request, self.max_retries)
        return ChatResult(generations=[ChatGeneration(message=to_message(done))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        runtime, request = await self._aruntime(kwargs), self._request(messages, stop, kwargs)
        done = await calls.acomplete(runtime.achat, request, self.max_retries)
        return ChatResult(generations=[ChatGeneration(message=to_message(done))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        runtime, request = self._runtime_for(kwargs.get("model")), self._request(messages, stop, kwargs)
        writer = ChunkWriter(v1=self.output_version == "v1")
        deltas = calls.stream(runtime.stream, request, self.max_retries)
        try:
            for delta in deltas:
                for message in writer.chunks(delta):
                    chunk = ChatGenerationChunk(message=message)
                    if run_manager:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
        finally:
            deltas.close()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        runtime, request = await self._aruntime(kwargs), self._request(messages, stop, kwargs)
        writer = ChunkWriter(v1=self.output_version == "v1")
        deltas = calls.astream(runtime.astream, request, self.max_retries)
        try:
            async for delta in deltas:
                for message in writer.chunks(delta):
                    chunk = ChatGenerationChunk(message=message)
                    if run_manager:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
        finally:
            await deltas.aclose()

    # --- tools and structure ---

    def bind_tools(
        self,
        tools: Sequence[ToolLike],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """This model with tools that it may call.

        Args:
            tools: functions, BaseTools, pydantic classes, or dicts in OpenAI's or Anthropic's form. A dict's
                ``cache_control``, or a tool's ``extras["cache_control"]``, pins the prompt up to and with the tools.
            tool_choice: "auto" (also None, False), "none", "any" or "required" (also True), a tool's name, or a dict.
            strict: True holds every call to its tool's schema, False only forced ones; None is what each tool says.
            parallel_tool_calls: False allows one call at most, True several also where some call is forced.
            kwargs: options for each call, as `invoke` takes them.

        A model whose family of tool calls cannot be held while it decides by itself refuses `strict` and one call at
        most when it is asked, with UnsupportedModeError.

        Raises:
            ToolSchemaError: something that is no tool.
            InvalidRequestError: a choice that names no tool.
        """
        converted = to_runtime_tools(tools, strict=strict)
        if parallel_tool_calls is not None:
            kwargs["parallel_tool_calls"] = parallel_tool_calls
        return self.bind(tools=converted, tool_choice=to_runtime_choice(tool_choice, converted), **kwargs)

    def with_structured_output(
        self,
        schema: structured.Schema | None = None,
        *,
        method: structured.Method = "function_calling",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """This model with answers of the form of `schema`: a pydantic class (v2 or v1), a TypedDict or a JSON schema.

        Args:
            schema: its docstring and field descriptions are part of the prompt with method="function_calling".
            method: "function_calling" (a forced call), "json_schema" (the answer itself is held to the schema) or
                "json_mode" (the answer is some JSON object; say in the prompt which).
            include_raw: gives ``{"raw": message, "parsed": ..., "parsing_error": ...}`` and does not raise.
            strict: the first two methods are always strict, so True and False are the same; json_mode never is.
            kwargs: options for each call, as `invoke` takes them.

        Raises:
            InvalidRequestError: an unknown method, no schema, or strict with json_mode.
            ToolSchemaError: something that is no schema.
        """
        if method not in ("function_calling", "json_schema", "json_mode"):
            msg = f"method={method!r} is unknown. Use 'function_calling', 'json_schema' or 'json_mode'."
            raise InvalidRequestError(msg)
        if method == "json_mode" and strict:
            msg = "strict=True cannot be held in method='json_mode'. Use method='json_schema'."
            raise InvalidRequestError(msg)
        if schema is not None:  # what LangChain's traces show; it never reaches the runtime
            kwargs["ls_structured_output_format"] = {"kwargs": {"method": method}, "schema": schema}
        if method == "function_calling":
            if schema is None:
                msg = "with_structured_output needs a schema; method='json_mode' is the one that goes without."
                raise InvalidRequestError(msg)
            name = to_runtime_tools([schema])[0]["function"]["name"]
            model = self.bind_tools([schema], tool_choice=name, **kwargs)
            parser = structured.call_parser(schema, name)
        else:
            model = self.bind(response_format=structured.response_format(schema, method), **kwargs)
            parser = structured.answer_parser(schema)
        return structured.with_raw(model, parser) if include_raw else model | parser

    # --- pins and tokens ---

    def pin(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[ToolLike] | None = None,
        *,
        name: str,
        ttl: str | float | None = "1h",
    ) -> Pin:
        """Computes the beginning of a conversation now and keeps it under `name`; requests that begin so reuse it."""
        converted = to_runtime_tools(tools) if tools else None
        return self.get_runtime().pin(to_runtime_messages(messages), converted, name=name, ttl=ttl, salt=self.salt)

    def get_token_ids(self, text: str) -> list[int]:
        """Ids of `text` in the model's own vocabulary."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self.get_runtime().tokenize(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[ToolLike] | None = None) -> int:
        """Tokens of the rendered prompt, as the model would be given it."""
        converted = to_runtime_tools(tools) if tools else None
        return self.get_runtime().count_tokens(to_runtime_messages(messages), converted)

    # --- what LangChain asks about the model ---

    def get_runtime(self) -> Runtime:
        """The Runtime behind this model, loaded now if it is not yet. Raises ModelError and EngineError."""
        runtime = super().get_runtime()
        if self.profile and self.profile.get("max_input_tokens", 0) > runtime.n_ctx:
            # The model was trained for less than the n_ctx asked for, which only its file tells.
            self.profile = {**self.profile, "max_input_tokens": runtime.n_ctx}
        return runtime

    @property
    def _llm_type(self) -> str:
        return "pinfold-chat"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = PROVIDER
        return params

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # The inherited key reads the serialised settings, which do not tell one given Runtime from another.
        return str(sorted(self._get_invocation_params(stop=stop, **kwargs).items()))

    def _resolve_model_profile(self) -> ModelProfile:
        options = RuntimeOptions.parse(self._runtime_options())
        return ModelProfile(
            max_input_tokens=self.runtime.n_ctx if self.runtime else options.n_ctx,
            text_inputs=True,
            text_outputs=True,
            image_inputs=False,
            audio_inputs=False,
            pdf_inputs=False,
            video_inputs=False,
            tool_calling=True,
            tool_choice=True,
            tool_call_streaming=True,
            # Agents take this to mean "together with tools", which servers are not asked for.
            structured_output=not (self.base_url or is_address(self.model)),
        )

    # --- from LangChain's call to the runtime's ---

    async def _aruntime(self, kwargs: dict[str, Any]) -> Runtime:
        # Loading a model takes seconds, which the event loop must not wait for.
        return await asyncio.to_thread(self._runtime_for, kwargs.get("model"))

    def _request(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments for `chat` and its siblings. The runtime refuses by name what it does not know."""
        request = {**self._generation(), "salt": self.salt, "session": self.session, **kwargs}
        for meant_for_langchain in ("model", "stream"):
            request.pop(meant_for_langchain, None)
        if stop is not None:
            request["stop"] = stop
        tools = to_runtime_tools(request.pop("tools", None) or [])
        if tools:
            request |= {"tools": tools, "tool_choice": to_runtime_choice(request.get("tool_choice"), tools)}
        return {"messages": to_runtime_messages(messages), **request}
