"""The LlamaIndex LLM: translates, calls the runtime, and translates back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr, SecretStr
from llama_index.core.constants import DEFAULT_NUM_OUTPUTS
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import ToolSelection

from llama_index.llms.pinfold.calls import Call
from llama_index.llms.pinfold.messages import runtime_messages
from llama_index.llms.pinfold.responses import GrowingAnswer, chat_response, completion_response
from llama_index.llms.pinfold.settings import (
    CHAT_FIELDS,
    ENGINE_FIELDS,
    GENERATION_FIELDS,
    RuntimeHandle,
    check_constructor,
    refuse_beside_runtime,
    split_call,
)
from llama_index.llms.pinfold.streams import observed_astream, observed_stream
from llama_index.llms.pinfold.structured import StructuredPrediction
from llama_index.llms.pinfold.tokens import TEMPLATE_TOKENS, count_with
from llama_index.llms.pinfold.tools import resolve_tool_choice, runtime_tools, tool_selections
from pinfold.errors import InvalidRequestError, UnknownOptionError
from pinfold.options import is_address

if TYPE_CHECKING:
    from llama_index.core.tools.types import BaseTool

    from pinfold import Pin, Runtime

__all__ = ["Pinfold"]


class Pinfold(StructuredPrediction):
    """A local model with pinned prompts.

    The model loads at the first request; objects with equal engine settings share it. Pickles and dicts carry the
    settings only. Every response has ``raw["usage"]``, the same counts in ``additional_kwargs``, and what was reused,
    how long it took and what was drafted in ``additional_kwargs["pinfold"]``. Unless ``Settings.tokenizer`` was set,
    the first such object of a model in this process makes it the model's own.

    Raises:
        UnknownOptionError: an argument that is no setting, here or in a call.
        InvalidRequestError: a setting out of its range.
    """

    model: str = Field(description="An alias, a path, or a Hugging Face id; the address or the id of a server's model.")
    base_url: tuple[str, ...] = Field(default=(), description="The address of a server, or of several with one model.")
    engine: str = Field(default="auto", description="The engine; auto chooses by the model.")
    n_ctx: int = Field(default=8192, description="Tokens that one request may use, prompt and answer together.")
    kv_cells: int | None = Field(default=None, description="Tokens of KV that all sessions together may hold.")
    draft: str = Field(default="auto", description="Draft-verify decoding: auto, off, lookup, grammar or model:PATH.")
    n_threads: int | None = Field(default=None, description="Threads of a forward; default the physical cores.")
    chat_template: str | None = Field(default=None, description="A Jinja template in place of the model's own.")
    runtime_options: dict[str, Any] = Field(default_factory=dict, description="Any other option of pinfold.Runtime.")

    max_tokens: int | None = Field(
        default=None, description="Most tokens of an answer; None is what the context holds."
    )
    temperature: float = Field(default=0.0, description="0 is greedy.")
    top_k: int = Field(default=0, description="Only the k most likely tokens; 0 is off.")
    top_p: float = Field(default=1.0, description="The smallest set whose probability reaches p; 1 is off.")
    min_p: float = Field(default=0.0, description="Only tokens this fraction as likely as the best; 0 is off.")
    repetition_penalty: float = Field(default=1.0, description="Against tokens seen lately; 1 is off.")
    presence_penalty: float = Field(default=0.0, description="Against tokens generated before; 0 is off.")
    frequency_penalty: float = Field(default=0.0, description="The same, by how often; 0 is off.")
    penalty_window: int = Field(default=64, description="Tokens that repetition_penalty looks back on.")
    seed: int | None = Field(default=None, description="Makes sampling repeatable.")
    stop: tuple[str, ...] = Field(default=(), description="Strings that end the answer.")
    timeout: float | None = Field(default=None, description="Seconds until a request is stopped.")

    salt: str | None = Field(default=None, description="Requests reuse only what was computed under the same salt.")
    session: str | None = Field(default=None, description="The named session that requests continue.")
    is_chat_model: bool = Field(default=True, description="False sends LlamaIndex's prompts as raw text.")
    is_function_calling_model: bool = Field(default=True, description="False makes agents ask for tools in text.")

    _runtime: RuntimeHandle = PrivateAttr(default_factory=RuntimeHandle)

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        runtime: Runtime | None = None,
        api_key: str | SecretStr | None = None,
        **settings: Any,
    ) -> None:
        """Settings as above. `api_key` is a server's; no dict or pickle has it, and PINFOLD_API_KEY stands in.

        `runtime` is used as it is and stays the caller's to close; engine settings cannot be given beside it. A pickle
        leaves it behind and opens `model` anew: name the model as well if there will be one.
        """
        checked = check_constructor(settings, type(self).model_fields)
        urls = checked.get("base_url") or ()
        checked["base_url"] = (urls,) if isinstance(urls, str) else tuple(urls)
        model = model or next(iter(checked["base_url"]), None)
        if runtime is not None:
            refuse_beside_runtime(settings)
            model, checked["n_ctx"] = model or runtime.model, runtime.n_ctx
        if model is None:
            msg = "No model was named. Pass an alias such as 'smollm2', a path, a Hugging Face id, or runtime=."
            raise InvalidRequestError(msg)
        super().__init__(**(checked | {"model": os.fspath(model)}))
        self._runtime = RuntimeHandle(runtime, api_key)
        if not self._remote:
            count_with(self._tokenize)

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex stores it."""
        return "pinfold_llm"

    @property
    def metadata(self) -> LLMMetadata:
        """Read from the settings, and a server's from the server. The context window of a model in this process is the
        true one once it is loaded, which this does not do. What `num_output` keeps free has room for the template too.
        """
        return LLMMetadata(
            context_window=self.runtime.n_ctx if self._remote else self._runtime.n_ctx or self.n_ctx,
            num_output=(self.max_tokens or DEFAULT_NUM_OUTPUTS) + TEMPLATE_TOKENS,
            is_chat_model=self.is_chat_model,
            is_function_calling_model=self.is_function_calling_model,
            model_name=self.model,
        )

    @property
    def _remote(self) -> bool:
        return bool(self.base_url) or is_address(self.model)

    @property
    def runtime(self) -> Runtime:
        """The runtime behind it; loads the model if that has not happened yet."""
        options = {name: getattr(self, name) for name in ENGINE_FIELDS}
        return self._runtime.open(self.model, {**options, **self.runtime_options})

    async def _aruntime(self) -> Runtime:
        return await asyncio.to_thread(lambda: self.runtime)  # the first use loads the model

    @property
    def tokenizer(self) -> Callable[[str], list[int]]:
        """Text to token ids, for ``Settings.tokenizer``: LlamaIndex then counts as the model does."""
        return self._tokenize

    def _tokenize(self, text: str) -> list[int]:
        return self.runtime.tokenize(text)

    def pin(
        self, messages: Sequence[ChatMessage], tools: Sequence[BaseTool] = (), *, name: str, ttl: str | None = "1h"
    ) -> Pin:
        """Computes the prefix that these messages and tools make, and keeps it under `name` until `ttl` is over."""
        pinned = runtime_tools(tools) or None
        return self.runtime.pin(runtime_messages(messages), pinned, name=name, ttl=ttl, salt=self.salt)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The whole answer. `kwargs`: any generation setting, tools, tool_choice, response_format, salt, session."""
        call = self._chat_call(runtime_messages(messages), kwargs)
        return chat_response(call.whole(self.runtime), one_tool_call=call.one_tool_call)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """`chat` without blocking the event loop; cancelling the task stops the engine."""
        call = self._chat_call(runtime_messages(messages), kwargs)
        return chat_response(await call.awhole(await self._aruntime()), one_tool_call=call.one_tool_call)

    @observed_stream(llm_chat_callback)
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Generator[ChatResponse, None, None]:
        """The answer as it grows; closing the generator stops the engine."""
        call = self._chat_call(runtime_messages(messages), kwargs)
        answer = GrowingAnswer(call.one_tool_call)
        with closing(call.deltas(self.runtime)) as deltas:
            for delta in deltas:
                if answer.add(delta):
                    yield answer.chat_response()

    @observed_astream(llm_chat_callback)
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> AsyncGenerator[ChatResponse, None]:
        """`stream_chat` without blocking the event loop."""
        call = self._chat_call(runtime_messages(messages), kwargs)
        answer = GrowingAnswer(call.one_tool_call)
        async with aclosing(call.adeltas(await self._aruntime())) as deltas:
            async for delta in deltas:
                if answer.add(delta):
                    yield answer.chat_response()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The answer to `prompt` as a user's message, or its continuation as raw text if it is `formatted` already."""
        return completion_response(self._completion_call(prompt, formatted, kwargs).whole(self.runtime))

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """`complete` without blocking the event loop; cancelling the task stops the engine."""
        call = self._completion_call(prompt, formatted, kwargs)
        return completion_response(await call.awhole(await self._aruntime()))

    @observed_stream(llm_completion_callback)
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> Generator[CompletionResponse, None, None]:
        """`complete` as it grows; closing the generator stops the engine."""
        answer = GrowingAnswer()
        with closing(self._completion_call(prompt, formatted, kwargs).deltas(self.runtime)) as deltas:
            for delta in deltas:
                if answer.add(delta):
                    yield answer.completion_response()

    @observed_astream(llm_completion_callback)
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> AsyncGenerator[CompletionResponse, None]:
        """`stream_complete` without blocking the event loop."""
        call, answer = self._completion_call(prompt, formatted, kwargs), GrowingAnswer()
        async with aclosing(call.adeltas(await self._aruntime())) as deltas:
            async for delta in deltas:
                if answer.add(delta):
                    yield answer.completion_response()

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The calls of an answer, or of what has come of it so far, that can be run.

        Raises:
            NoToolCallError: there is none, and `error_on_no_tool_call` is set.
        """
        if kwargs:
            msg = f"get_tool_calls_from_response takes no option {next(iter(kwargs))!r}. Leave it out."
            raise UnknownOptionError(msg)
        return tool_selections(response.message, error_on_none=error_on_no_tool_call)

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        del verbose  # what it asks for is printed by LlamaIndex, when it runs the tools
        messages = list(chat_history or ())
        if isinstance(user_msg, str):
            user_msg = ChatMessage(role=MessageRole.USER, content=user_msg)
        if user_msg is not None:
            messages.append(user_msg)
        choice = resolve_tool_choice(tool_choice, required=tool_required, tools=tools)
        asked = {"tools": runtime_tools(tools), "tool_choice": choice, "parallel_tool_calls": allow_parallel_tool_calls}
        return {"messages": messages, **(asked if tools else {}), **kwargs}

    def _chat_call(self, prompt: list[dict[str, Any]], kwargs: dict[str, Any]) -> Call:
        generation, request = split_call(kwargs)
        arguments = self._generation() | generation
        tools = runtime_tools(request.get("tools") or ())
        choice = resolve_tool_choice(request.get("tool_choice"), required=False, tools=tools)
        if tools:
            arguments |= {"tools": tools, "tool_choice": choice}
        arguments |= {name: request[name] for name in CHAT_FIELDS if request.get(name) is not None}
        arguments |= {name: request.get(name, getattr(self, name)) for name in ("salt", "session")}
        return Call(prompt, arguments, one_tool_call=not request.get("parallel_tool_calls", True))

    def _completion_call(self, prompt: str, formatted: bool, kwargs: dict[str, Any]) -> Call:
        if self.is_chat_model and not formatted:
            return self._chat_call([{"role": "user", "content": prompt}], kwargs)
        generation, request = split_call(kwargs)
        salt, session = request.pop("salt", self.salt), request.pop("session", self.session)
        refused = next(iter(request), "session" if session is not None else None)
        if refused:
            msg = f"{refused!r} needs a chat, and this prompt is raw text. Use chat, or leave it out."
            raise InvalidRequestError(msg)
        if not formatted and self.completion_to_prompt is not None:
            prompt = self.completion_to_prompt(prompt)
        return Call(prompt, self._generation() | generation | {"salt": salt})

    def _generation(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in GENERATION_FIELDS}
