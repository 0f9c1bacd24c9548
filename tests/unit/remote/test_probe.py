"""What kind of server it is, what it can do, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import respx

from pinfold import Runtime
from pinfold.errors import InvalidRequestError, UnsupportedModeError
from pinfold.output.schema import narrowed
from tests.support.wire import URL, FakeServer, chat_chunks, sse

Open = Callable[..., Runtime]
HI = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {"name": name, "description": name, "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    for name in ("weigh", "move")
]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def api(*fields: str, title: str = "FastAPI", **paths: Any) -> dict[str, Any]:
    body = {"properties": {name: {} for name in fields}}
    return {"info": {"title": title}, "paths": paths, "components": {"schemas": {"ChatCompletionRequest": body}}}


def vllm(router: respx.Router, *fields: str) -> FakeServer:
    server = FakeServer(router, owner="vllm", max_model_len=4096)
    server.get("/version", {"version": "0.11.2"})
    server.get("/openapi.json", api("messages", "cache_salt", *fields))
    return server


def sglang(router: respx.Router) -> FakeServer:
    server = FakeServer(router, owner="sglang", max_model_len=2048)
    server.get("/get_model_info", {"model_path": "m"})
    server.get("/get_server_info", {"disable_radix_cache": False, "enable_cache_report": False, "version": "0.5"})
    server.get("/openapi.json", api("messages", **{"/tokenize": {}}))
    return server


def llama_server(router: respx.Router, **props: Any) -> FakeServer:
    server = FakeServer(router, owner="llamacpp", meta={"n_ctx_train": 8192})
    server.get("/props", {"default_generation_settings": {"n_ctx": 1024}, "total_slots": 4, **props})
    return server


def llama_cpp_python(router: respx.Router) -> FakeServer:
    server = FakeServer(router, owner="me")
    server.get("/openapi.json", api("messages", title="\N{LLAMA} llama.cpp Python API"))
    return server


def mlx_lm(router: respx.Router) -> FakeServer:
    server = FakeServer(router, owner="")
    reply = httpx.Response(200, headers={"server": "BaseHTTP/0.6 Python/3.12"}, content=b"")
    router.get(f"{URL}/models").mock(return_value=reply)
    server.get("/health", {"status": "ok"})
    return server


def mesh_llm(router: respx.Router) -> FakeServer:
    return FakeServer(router, owner="mesh-llm")


MAKERS = {
    "vllm": vllm,
    "sglang": sglang,
    "llama-server": llama_server,
    "llama-cpp-python": llama_cpp_python,
    "mlx-lm": mlx_lm,
    "mesh-llm": mesh_llm,
    "openai": FakeServer,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_each_kind_is_known_by_what_it_says(router: respx.Router, opened: Open, kind: str) -> None:
    MAKERS[kind](router)
    capabilities = opened().capabilities
    assert (capabilities.engine, capabilities.device) == (kind, "server")
    assert len(capabilities.modes) == 14
    assert all(mode.reason for mode in capabilities.modes)


def test_what_is_not_known_is_called_unknown(router: respx.Router, opened: Open) -> None:
    FakeServer(router)
    rt = opened()
    assert all(mode.reason.startswith("unknown") for mode in rt.capabilities.modes if mode.name != "own rendering")
    assert rt.capabilities.facets["n_ctx"] == "unknown"
    assert rt.n_ctx == rt.options.n_ctx


def test_a_replys_figures_teach_what_the_probe_could_not(router: respx.Router, opened: Open) -> None:
    server = vllm(router)
    rt = opened()
    assert not rt.capabilities.mode("cached tokens").usable
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    server.answers(sse(chat_chunks("Hm", usage=usage)))
    rt.chat(HI)
    assert rt.capabilities.mode("cached tokens").usable


@pytest.mark.parametrize(("kind", "n_ctx"), [("vllm", 4096), ("sglang", 2048), ("llama-server", 1024)])
def test_the_window_is_the_servers(router: respx.Router, opened: Open, kind: str, n_ctx: int) -> None:
    MAKERS[kind](router)
    assert opened().n_ctx == n_ctx


def asked(server: FakeServer, rt: Runtime, **options: Any) -> dict[str, Any]:
    server.answers(sse(chat_chunks('{"name": "weigh", "arguments": {"n": 1}}')))
    rt.chat(HI, **options)
    return server.bodies[-1]


def test_a_salt_goes_where_there_are_salts(router: respx.Router, opened: Open) -> None:
    server = vllm(router)
    assert asked(server, opened(), salt="tenant 1")["cache_salt"] == "tenant 1"


@pytest.mark.parametrize("kind", ["sglang", "llama-server", "llama-cpp-python", "mlx-lm", "mesh-llm", "openai"])
def test_a_salt_is_refused_where_there_are_none(router: respx.Router, opened: Open, kind: str) -> None:
    MAKERS[kind](router)
    with pytest.raises(UnsupportedModeError, match="salt"):
        opened().chat(HI, salt="tenant 1")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("vllm", {"top_k": 0, "min_p": 0.1, "repetition_penalty": 1.2}),
        ("sglang", {"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.2}),
        ("llama-server", {"top_k": 0, "min_p": 0.1, "repeat_penalty": 1.2, "repeat_last_n": 64}),
        ("llama-cpp-python", {"top_k": 0, "min_p": 0.1, "repeat_penalty": 1.2}),
        ("mlx-lm", {"top_k": 0, "min_p": 0.1, "repetition_penalty": 1.2, "repetition_context_size": 64}),
    ],
)
def test_sampling_options_by_the_servers_names(
    router: respx.Router, opened: Open, kind: str, expected: dict[str, Any]
) -> None:
    server = MAKERS[kind](router)
    body = asked(server, opened(), min_p=0.1, repetition_penalty=1.2, temperature=0.5, seed=3, stop="x")
    assert {name: body[name] for name in expected} == expected
    assert (body["temperature"], body["seed"], body["stop"]) == (0.5, 3, ["x"])


def test_a_sampling_option_that_the_server_may_not_have_is_refused(router: respx.Router, opened: Open) -> None:
    server = FakeServer(router)
    rt = opened()
    assert "top_k" not in asked(server, rt)
    with pytest.raises(UnsupportedModeError, match="top_k=40"):
        rt.chat(HI, top_k=40)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai", "mesh-llm"])
def test_a_forced_call_is_the_servers_own_where_it_has_them(router: respx.Router, opened: Open, kind: str) -> None:
    server = MAKERS[kind](router)
    rt = opened()
    assert asked(server, rt, tools=TOOLS, tool_choice="required")["tool_choice"] == "required"
    named = asked(server, rt, tools=TOOLS, tool_choice="move")
    assert named["tool_choice"] == {"type": "function", "function": {"name": "move"}}
    assert [tool["function"]["name"] for tool in named["tools"]] == ["weigh", "move"]


def test_a_forced_call_is_a_schema_where_nothing_else_holds_it(router: respx.Router, opened: Open) -> None:
    server = llama_cpp_python(router)
    body = asked(server, opened(), tools=TOOLS, tool_choice="required")
    assert "tool_choice" not in body
    names = [each["properties"]["name"] for each in body["response_format"]["schema"]["anyOf"]]
    assert names == [{"const": "weigh"}, {"const": "move"}]


def test_the_text_of_such_a_call_is_the_call(router: respx.Router, opened: Open) -> None:
    server = llama_cpp_python(router)
    rt = opened()
    server.answers(sse(chat_chunks('{"name": "weigh", ', '"arguments": {"n": 1}}')))
    done = rt.chat(HI, tools=TOOLS, tool_choice="required")
    assert [(call.name, call.arguments) for call in done.tool_calls] == [("weigh", {"n": 1})]
    server.answers(sse(chat_chunks('{"name": "weigh", ', '"argu', finish="length")))
    cut = rt.chat(HI, tools=TOOLS, tool_choice="required")
    assert (len(cut.tool_calls), len(cut.invalid_tool_calls), cut.finish_reason) == (0, 1, "length")


def test_references_within_a_tools_schema_hold_in_the_calls(router: respx.Router, opened: Open) -> None:
    server = llama_cpp_python(router)
    parameters = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    body = asked(server, opened(), tools=[{"name": "grow", "parameters": parameters}], tool_choice="grow")
    schema = body["response_format"]["schema"]
    place = schema["properties"]["arguments"]["$ref"]
    assert place == "#/$defs/tool_0"
    held = schema["$defs"]["tool_0"]
    assert held["properties"]["tree"]["$ref"] == "#/$defs/tool_0/$defs/node"
    assert held["$defs"]["node"]["properties"]["next"]["$ref"] == "#/$defs/tool_0/$defs/node"


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai", "mesh-llm"])
def test_a_schema_in_openais_form(router: respx.Router, opened: Open, kind: str) -> None:
    server = MAKERS[kind](router)
    held = asked(server, opened(), response_format=FORMAT)["response_format"]
    assert (held["type"], held["json_schema"]["schema"]) == ("json_schema", narrowed(SCHEMA))


def test_a_schema_for_llama_cpp_python(router: respx.Router, opened: Open) -> None:
    server = llama_cpp_python(router)
    held = asked(server, opened(), response_format=FORMAT)["response_format"]
    assert held == {"type": "json_object", "schema": narrowed(SCHEMA)}


@pytest.mark.parametrize("options", [{"response_format": FORMAT}, {"tools": TOOLS, "tool_choice": "required"}])
def test_what_a_server_cannot_hold_an_answer_to_is_refused(
    router: respx.Router, opened: Open, options: dict[str, Any]
) -> None:
    mlx_lm(router)
    with pytest.raises(UnsupportedModeError, match="no constrained decoding"):
        opened().chat(HI, **options)


def test_tools_that_a_server_would_leave_out_are_refused(router: respx.Router, opened: Open) -> None:
    llama_server(router, chat_template_caps={"supports_tools": False})
    with pytest.raises(UnsupportedModeError, match="rendering='own'"):
        opened().chat(HI, tools=TOOLS)


def test_a_server_whose_streams_have_no_usage_is_asked_for_the_whole(router: respx.Router, opened: Open) -> None:
    server = llama_cpp_python(router)
    rt = opened()
    message = {"role": "assistant", "content": "Good day"}
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    whole = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    server.answers(httpx.Response(200, json=whole))
    done = rt.chat(HI)
    assert (server.bodies[-1]["stream"], done.text, done.usage.prompt_tokens) == (False, "Good day", 9)
    assert (done.usage.cached_tokens, done.cache.hit_kind) == (None, "unknown")
    server.answers(sse(chat_chunks("Good day")))
    assert [d.text for d in rt.stream(HI)] == ["Good day", ""]
    assert server.bodies[-1]["stream"] is True


def test_an_answer_of_any_length(router: respx.Router, opened: Open) -> None:
    server = mlx_lm(router)
    assert asked(server, opened(n_ctx=1000))["max_tokens"] == 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_resident": "q8_0"}, "kv_resident"),
        ({"n_gpu_layers": 3}, "n_gpu_layers"),
        ({"draft": "model:x.gguf"}, "draft"),
        ({"engine": "mlx"}, "engine"),
        ({"rendering": "own"}, "does not show its chat template"),
    ],
)
def test_options_of_a_model_in_this_process_are_refused(
    server: FakeServer, opened: Open, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedModeError, match=words):
        opened(**options)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"draft": "lookup"}, UnsupportedModeError, "draft"),
        ({"tools": TOOLS, "response_format": FORMAT}, UnsupportedModeError, "not both"),
        ({"reasoning": "off"}, UnsupportedModeError, "reasoning"),
        ({"reasoning_budget": 5}, UnsupportedModeError, "reasoning_budget"),
        ({"tools": TOOLS, "parallel_tool_calls": False}, UnsupportedModeError, "parallel_tool_calls"),
        ({"response_format": {"type": "xml"}}, InvalidRequestError, "response_format"),
        ({"tools": TOOLS, "tool_choice": "fly"}, InvalidRequestError, "fly"),
        ({"temperature": -1}, InvalidRequestError, "temperature"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_it_is_sent(
    server: FakeServer, opened: Open, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    rt = opened()
    with pytest.raises(kind, match=words):
        rt.chat(HI, **options)
    assert not server.requests


@pytest.mark.parametrize(
    "messages", ["Hi", [], [{"content": "Hi"}], ["Hi"], [{"role": "user", "content": {1, 2}}]], ids=repr
)
def test_messages_that_are_none(server: FakeServer, opened: Open, messages: Any) -> None:
    with pytest.raises(InvalidRequestError):
        opened().chat(messages)


def test_messages_are_sent_as_they_are_but_for_cache_marks(server: FakeServer, opened: Open) -> None:
    rt = opened()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    text = {"type": "text", "text": "What is it?", "cache_control": {"type": "ephemeral"}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"n": 1}}}
    server.answers(sse(chat_chunks("A dot")))
    rt.chat([{"role": "user", "content": [text, image]}, {"role": "assistant", "content": None, "tool_calls": [call]}])
    first, second = server.bodies[-1]["messages"]
    assert first["content"] == [{"type": "text", "text": "What is it?"}, image]
    assert second["tool_calls"][0]["function"]["arguments"] == '{"n": 1}'


def test_what_only_the_engine_here_can_do(server: FakeServer, opened: Open) -> None:
    rt = opened()
    rt.session("s")
    with pytest.raises(UnsupportedModeError, match="refold"):
        rt.refold("s", "compact")
    with pytest.raises(UnsupportedModeError, match="requantize"):
        rt.requantize("s", "q8_0")
    with pytest.raises(UnsupportedModeError, match="tokenizer"):
        rt.tokenize("x")
    with pytest.raises(UnsupportedModeError, match="chat_template"):
        rt.count_tokens(HI)
    with pytest.raises(UnsupportedModeError, match="chat_template"):
        rt.check_prompt(HI)
