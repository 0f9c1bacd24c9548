"""A caller's request, checked -> what is sent to one server, and the reply that will read its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pinfold.answer import PlainText
from pinfold.chat_options import ChatOptions
from pinfold.errors import ContextOverflowError, InvalidRequestError, UnsupportedModeError
from pinfold.options import GenerationOptions, RuntimeOptions
from pinfold.output.parser import OutputParser
from pinfold.output.tool_calls import FORMATS, MARKUP, detect_format
from pinfold.prompt.messages import normalize
from pinfold.prompt.tools import Tool, ToolChoice, canonical_json, canonical_tools, parse_tool_choice
from pinfold.remote.kinds import KINDS
from pinfold.remote.replicas import Server
from pinfold.remote.replies import Reply
from pinfold.remote.requests import call_schema, common_body, response_schema, with_calls, with_schema

__all__ = ["Asked", "Prepared", "asked_chat", "asked_text", "prepare"]

_SERVER_DRAFTS = (None, "auto", "off")


@dataclass(frozen=True)
class Asked:
    """A request that no server has seen yet. Either `messages` or `text` is what it asks.

    Attributes:
        messages: as they are sent, without what only we read.
        units: each message as canonical JSON, by which prompts are compared.
        tools_unit: the tools likewise.
    """

    options: GenerationOptions
    salt: str | None = None
    session: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    text: str | None = None
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    response_format: Mapping[str, Any] | None = None
    units: tuple[str, ...] = ()
    tools_unit: str = ""


@dataclass(frozen=True)
class Prepared:
    """A request for one server: `path` under its API, `body`, and `reply`, which makes a fresh reader of its answer.

    `text` is the prompt as it was rendered here, "" where the server renders it.
    """

    path: str
    body: dict[str, Any]
    reply: Callable[[], Reply]
    text: str = ""
    notes: tuple[str, ...] = ()


def asked_chat(messages: Any, keywords: Mapping[str, Any], options: RuntimeOptions) -> Asked:
    """A chat, checked. Raises InvalidRequestError and the kinds below it."""
    given = dict(keywords)
    tools = canonical_tools(given.pop("tools", None))
    choice = parse_tool_choice(given.pop("tool_choice", "auto"), tools)
    response_format = given.pop("response_format", None)
    salt, session = given.pop("salt", None), given.pop("session", None)
    for name, value in ChatOptions.take(given).model_dump(exclude_none=True).items():
        if name != "parallel_tool_calls" or value is False:
            msg = f"{name}={value!r} is not held on a server. Leave it out, or use a model in this process."
            raise UnsupportedModeError(msg)
    if response_format is not None:
        if tools and choice.mode != "none":
            msg = "A server takes tools or response_format, not both. Set tool_choice='none' or drop one."
            raise UnsupportedModeError(msg)
        response_schema(response_format)
    sent, units = _sent(messages)
    return Asked(
        options=_generation(given, options),
        salt=salt,
        session=session,
        messages=sent,
        tools=tools,
        choice=choice,
        response_format=response_format,
        units=units,
        tools_unit=canonical_json([tool.spec for tool in tools]),
    )


def asked_text(text: Any, keywords: Mapping[str, Any], options: RuntimeOptions) -> Asked:
    """A raw prompt, checked. Raises InvalidRequestError."""
    given = dict(keywords)
    salt = given.pop("salt", None)
    if not isinstance(text, str) or not text:
        msg = "The prompt is empty or no text. Give at least one character."
        raise InvalidRequestError(msg)
    return Asked(options=_generation(given, options), salt=salt, text=text)


def prepare(
    server: Server,
    asked: Asked,
    options: RuntimeOptions,
    *,
    stream: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    """The request for `server`. Not on the transport's loop: it may ask the server's tokenizer.

    Raises:
        UnsupportedModeError: the server cannot be asked that.
        InvalidRequestError, TemplateError: the template here refuses the messages.
    """
    body = common_body(server.facts, asked.options, asked.salt, stream=stream)
    if progress is not None and server.facts.kind == "llama-server" and stream:
        body["return_progress"] = True
    if asked.text is not None:
        return _raw(server, asked, options, body, asked.text, progress)
    if server.rendering is not None:
        return _rendered(server, asked, options, body, progress)
    return _chat(server, asked, options, body, progress)


def _chat(server: Server, asked: Asked, options: RuntimeOptions, body: dict[str, Any], progress: Any) -> Prepared:
    facts = server.facts
    body["messages"] = list(asked.messages)
    as_call = with_calls(body, facts, asked.tools, asked.choice)
    if asked.response_format is not None:
        with_schema(body, facts, response_schema(asked.response_format), raw=False)
    if asked.options.max_tokens is not None:
        body["max_tokens"] = asked.options.max_tokens
    elif KINDS[facts.kind].open_chat == "count":
        body["max_tokens"] = server.n_ctx(options)
    family = _family(options, facts.template)
    offered = "tools" in body

    def reply() -> Reply:
        # Where the server may leave calls in the text, they are read here.
        reads = offered and (as_call or facts.known("tool calls") != "yes")
        parser = OutputParser(
            tools=[tool.spec for tool in asked.tools] if reads else (),
            expect="required" if as_call else "auto" if reads else "none",
            family=family,
        )
        return Reply(parser, [tool.name for tool in asked.tools], as_call=as_call, progress=progress)

    return Prepared("/chat/completions", body, reply)


def _rendered(server: Server, asked: Asked, options: RuntimeOptions, body: dict[str, Any], progress: Any) -> Prepared:
    own, facts = server.rendering, server.facts
    if own is None:
        msg = "This server's chats are sent as they are."
        raise UnsupportedModeError(msg)
    conversation = normalize(asked.messages, [tool.spec for tool in asked.tools] or None)
    text = own.renderer.text(conversation, generation=True)
    forced = asked.choice.mode in ("required", "named")
    if forced:
        with_schema(body, facts, call_schema(asked.tools, asked.choice), raw=True)
    elif asked.response_format is not None:
        with_schema(body, facts, response_schema(asked.response_format), raw=True)
    if own.renderer.stop:
        body["stop"] = [*body.get("stop", ()), *own.renderer.stop]
    template = own.renderer.template
    family = _family(options, template.source if template.traits.tools else None)
    if facts.kind == "llama-server":
        # Each costs the server time. Without tools the model writes no marks but those that its template knows.
        marks = sorted(mark.decode() for mark in MARKUP)
        body["preserved_tokens"] = [mark for mark in marks if asked.tools or mark in template.source]
    _bound(server, body, asked, options, text)
    expect: Any = "required" if forced else "none" if asked.response_format or asked.choice.mode == "none" else "auto"
    opened = own.renderer.generation_prefix.rstrip().endswith("<think>") and not forced

    def reply() -> Reply:
        specs = [tool.spec for tool in asked.tools]
        parser = OutputParser(tools=specs, expect=expect, reasoning_open=opened, family=family)
        return Reply(parser, [tool.name for tool in asked.tools], as_call=forced, progress=progress)

    body["prompt"] = own.raw(text, facts)
    return Prepared("/completions", body, reply, text=text)


def _raw(
    server: Server, asked: Asked, options: RuntimeOptions, body: dict[str, Any], text: str, progress: Any
) -> Prepared:
    if server.facts.known("raw prompts") == "no":
        server.facts.refuse("complete", "raw prompts", "Use chat.")
    body["prompt"] = text
    _bound(server, body, asked, options, text)
    return Prepared("/completions", body, lambda: Reply(PlainText(), progress=progress), text=text)


def _bound(server: Server, body: dict[str, Any], asked: Asked, options: RuntimeOptions, text: str) -> None:
    """max_tokens of a raw prompt."""
    way = KINDS[server.facts.kind].open_text
    if asked.options.max_tokens is not None:
        body["max_tokens"] = asked.options.max_tokens
    elif way == "null":
        body["max_tokens"] = None
    elif way == "count":
        window = server.n_ctx(options)
        used = len(server.tokenizer.encode(text, bos=True)) if server.tokenizer is not None else 0
        if used >= window:
            raise ContextOverflowError(used, window, "start the server with a larger context")
        body["max_tokens"] = window - used


def _family(options: RuntimeOptions, template: str | None) -> str:
    if options.tool_format == "auto":
        return detect_format(template) if template else "hermes"
    if options.tool_format not in FORMATS:
        msg = f"tool_format={options.tool_format!r} is none of 'auto', {', '.join(map(repr, FORMATS))}."
        raise InvalidRequestError(msg)
    return options.tool_format


def _generation(given: Mapping[str, Any], options: RuntimeOptions) -> GenerationOptions:
    generation = GenerationOptions.parse(given)
    if generation.draft not in _SERVER_DRAFTS:
        msg = f"draft={generation.draft!r}: the server decodes, and drafts as it was started. Leave draft out."
        raise UnsupportedModeError(msg)
    return generation if generation.timeout else generation.model_copy(update={"timeout": options.timeout})


def _sent(messages: Any) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """The messages as they are sent, and each as canonical JSON."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        msg = 'messages is no list of messages; give one such as [{"role": "user", "content": "Hi"}].'
        raise InvalidRequestError(msg)
    sent = tuple(_message(message, index) for index, message in enumerate(messages))
    return sent, tuple(_unit(message, index) for index, message in enumerate(sent))


def _unit(message: Mapping[str, Any], index: int) -> str:
    try:
        return canonical_json(message)
    except (TypeError, ValueError, RecursionError) as e:
        msg = f"messages[{index}] is no JSON: {e}. Give plain JSON values."
        raise InvalidRequestError(msg) from e


def _message(message: Any, index: int) -> Mapping[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        msg = f'messages[{index}] is no message. Give a dict such as {{"role": "user", "content": "Hi"}}.'
        raise InvalidRequestError(msg)
    plain: dict[str, Any] = {key: value for key, value in message.items() if key != "cache_control"}
    content = plain.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        plain["content"] = [_block(block) for block in content]
    calls = plain.get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _block(block: Any) -> Any:
    return {k: v for k, v in block.items() if k != "cache_control"} if isinstance(block, Mapping) else block


def _call(call: Any) -> Any:
    """A call of an earlier turn, with its arguments as the text that the wire has."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": canonical_json(function.get("arguments") or {})}}
