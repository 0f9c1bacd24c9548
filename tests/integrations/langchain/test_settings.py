"""Constructor arguments, options of a call, retries and errors. No model is loaded."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from langchain_core import exceptions as langchain_errors
from langchain_core.load import dumpd, load
from langchain_core.messages import HumanMessage
from pydantic import ValidationError

from langchain_pinfold import ChatPinfold, PinfoldLLM
from langchain_pinfold.errors import ContextOverflowError
from pinfold import errors
from pinfold.results import Completion

DONE = Completion(text="ok", model="fake")


def ask(fake_runtime: Any, *, settings: dict[str, Any] | None = None, **call: Any) -> dict[str, Any]:
    ChatPinfold(runtime=fake_runtime, **(settings or {})).invoke("Hi", **call)
    return fake_runtime.requests[-1]


def test_settings_reach_the_runtime_and_a_call_overrides_them(fake: Any) -> None:
    settings = {"temperature": 0.5, "top_k": 40, "stop": ["\n"], "seed": 7, "timeout": 9.0, "salt": "team"}
    request = ask(fake(DONE), settings=settings, top_k=3, stop=["END"], min_p=0.1)
    assert request == {
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "stop": ["END"],
        "seed": 7,
        "timeout": 9.0,
        "salt": "team",
        "session": None,
    }


def test_settings_left_out_are_left_to_the_runtime(fake: Any) -> None:
    assert ask(fake(DONE)) == {
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.0,
        "salt": None,
        "session": None,
    }


def test_bound_tools_reach_the_runtime(fake: Any) -> None:
    def add(a: int) -> int:
        """Adds one."""
        return a + 1

    runtime = fake(DONE)
    ChatPinfold(runtime=runtime).bind_tools([add], tool_choice="any", max_tokens=5).invoke("Hi")
    request = runtime.requests[-1]
    assert request["tool_choice"] == "required"
    assert request["tools"][0]["function"]["name"] == "add"
    assert request["max_tokens"] == 5
    assert "parallel_tool_calls" not in request
    runtime = fake(DONE)
    ChatPinfold(runtime=runtime).bind_tools([add], strict=True, parallel_tool_calls=False).invoke("Hi")
    assert runtime.requests[-1]["tools"][0]["function"]["strict"] is True
    assert runtime.requests[-1]["parallel_tool_calls"] is False


@pytest.mark.parametrize("cls", [ChatPinfold, PinfoldLLM])
def test_unknown_arguments_are_refused_by_name(cls: Any) -> None:
    with pytest.raises(ValidationError, match=r"'n_ctxx'\. Did you mean 'n_ctx'"):
        cls(n_ctxx=512)
    with pytest.raises(ValidationError, match=r"'prefil_chunk'.*'prefill_chunk'"):
        cls(runtime_options={"prefil_chunk": 64})
    with pytest.raises(ValidationError, match="'top_p'"):
        cls(top_p=2.0)
    with pytest.raises(ValidationError, match=r"given twice.*n_ctx"):
        cls(n_ctx=512, runtime_options={"n_ctx": 512})


def test_a_given_runtime_brings_its_own_settings(fake: Any) -> None:
    runtime = fake()
    assert ChatPinfold(runtime=runtime).model == "fake"
    assert ChatPinfold(runtime=runtime, model="fake").model == "fake"
    with pytest.raises(ValidationError, match="model, n_ctx"):
        ChatPinfold(runtime=runtime, model="other", n_ctx=512)
    with pytest.raises(errors.UnsupportedModeError, match="'other'"):
        ChatPinfold(runtime=runtime).invoke("Hi", model="other")


def test_an_api_key_is_not_kept_and_not_ignored_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        model = ChatPinfold(api_key="secret")
    assert "api_key is not used" in caplog.text
    assert "secret" not in repr(model)
    assert "secret" not in str(dumpd(model))


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")
def test_pickles_and_serialised_forms_carry_settings_only(fake: Any) -> None:
    model = ChatPinfold(runtime=fake(), top_k=5, stop=["x"])
    assert model.get_runtime() is model.runtime
    copy = pickle.loads(pickle.dumps(model))  # noqa: S301 - made here
    assert copy.runtime is None
    assert (copy.model, copy.top_k, copy.stop) == ("fake", 5, ["x"])
    written = dumpd(ChatPinfold(n_ctx=1024, top_k=5))
    assert "runtime" not in written["kwargs"]
    read = load(written, allowed_objects=[ChatPinfold], valid_namespaces=["langchain_pinfold"])
    assert (read.n_ctx, read.top_k) == (1024, 5)


def test_profile_and_tracing_parameters() -> None:
    model = ChatPinfold(model="smollm2", n_ctx=1024, max_tokens=9, stop=["x"])
    assert model.profile is not None
    assert model.profile["max_input_tokens"] == 1024
    assert model.profile["tool_calling"]
    assert model.profile["structured_output"]
    assert not ChatPinfold(base_url="http://localhost:1/v1").profile["structured_output"]
    params = model._get_ls_params()
    assert (params["ls_provider"], params["ls_model_name"], params["ls_stop"]) == ("pinfold", "smollm2", ["x"])


def test_the_answer_cache_tells_settings_apart() -> None:
    keys = [
        ChatPinfold(**settings)._get_llm_string(stop=None)
        for settings in ({}, {"kv_resident": "q8_0"}, {"draft": "off"}, {"temperature": 1.0}, {"salt": "a"})
    ]
    assert len(set(keys)) == len(keys)
    assert ChatPinfold()._get_llm_string(stop=None) == keys[0]


ENGINE_FAILURE = errors.DecodeError("the forward pass failed")


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_a_failure_of_the_engine_is_retried(fake: Any, way: str, caplog: pytest.LogCaptureFixture) -> None:
    runtime = fake(ENGINE_FAILURE, ENGINE_FAILURE, DONE)
    model = ChatPinfold(runtime=runtime, max_retries=2)
    with caplog.at_level(logging.WARNING):
        text = model.invoke("Hi").text if way == "invoke" else "".join(chunk.text for chunk in model.stream("Hi"))
    assert text == "ok"
    assert len(runtime.requests) == 3
    assert caplog.text.count("trying the request again") == 2


@pytest.mark.parametrize("way", ["ainvoke", "astream"])
async def test_a_failure_of_the_engine_is_retried_async(fake: Any, way: str) -> None:
    runtime = fake(ENGINE_FAILURE, DONE)
    model = ChatPinfold(runtime=runtime, max_retries=1)
    if way == "ainvoke":
        text = (await model.ainvoke("Hi")).text
    else:
        text = "".join([chunk.text async for chunk in model.astream("Hi")])
    assert text == "ok"
    assert len(runtime.requests) == 2


def test_retries_end(fake: Any) -> None:
    runtime = fake(ENGINE_FAILURE, ENGINE_FAILURE, DONE)
    with pytest.raises(errors.DecodeError):
        ChatPinfold(runtime=runtime, max_retries=1).invoke("Hi")
    assert len(runtime.requests) == 2


def test_a_stream_that_has_begun_is_not_retried(fake: Any) -> None:
    class BreaksOff(fake):  # type: ignore[misc]
        def stream(self, **request: Any) -> Any:
            yield from list(super().stream(**request))[:2]
            raise ENGINE_FAILURE

    runtime = BreaksOff(DONE, DONE)
    with pytest.raises(errors.DecodeError):
        list(ChatPinfold(runtime=runtime).stream("Hi"))
    assert len(runtime.requests) == 1


def test_a_request_error_is_not_retried(fake: Any) -> None:
    runtime = fake(errors.UnknownOptionError("Unknown option 'x'."), DONE)
    with pytest.raises(errors.UnknownOptionError):
        ChatPinfold(runtime=runtime).invoke("Hi", x=1)
    assert runtime.requests[-1]["x"] == 1
    assert len(runtime.requests) == 1


@pytest.mark.parametrize(
    ("raised", "also"),
    [
        (errors.ContextOverflowError(900, 512), langchain_errors.ContextOverflowError),
        (errors.RequestTimeoutError("took 9 s"), langchain_errors.ModelTimeoutError),
        (errors.ModelNotFoundError("no such model"), langchain_errors.ModelNotFoundError),
    ],
)
def test_errors_are_langchains_too(fake: Any, raised: Exception, also: type[Exception]) -> None:
    for use in ("invoke", "stream"):
        with pytest.raises(also) as caught:
            list(getattr(ChatPinfold(runtime=fake(raised)), use)([HumanMessage("Hi")]))
        assert isinstance(caught.value, type(raised))
        assert str(caught.value) == str(raised)


def test_a_context_overflow_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ContextOverflowError(900, 512)))  # noqa: S301 - made here
    assert (error.prompt_tokens, error.n_ctx) == (900, 512)


def test_leaving_a_stream_closes_the_runtimes(fake: Any) -> None:
    runtime = fake(Completion(text="abcdef", model="fake"))
    for _ in ChatPinfold(runtime=runtime).stream("Hi"):
        break
    assert runtime.closed_early == 1


async def test_leaving_an_async_stream_closes_the_runtimes(fake: Any) -> None:
    runtime = fake(Completion(text="abcdef", model="fake"))
    stream = ChatPinfold(runtime=runtime).astream("Hi")
    await anext(stream)
    await stream.aclose()
    assert runtime.closed_early == 1


def test_llm_answers_and_reports(fake: Any) -> None:
    runtime = fake(DONE, DONE)
    result = PinfoldLLM(runtime=runtime, max_tokens=3).generate(["a", "b"], stop=["."])
    assert [generations[0].text for generations in result.generations] == ["ok", "ok"]
    assert {request["prompt"] for request in runtime.requests} == {"a", "b"}
    assert runtime.requests[0]["stop"] == ["."]
    assert runtime.requests[0]["max_tokens"] == 3
    info = result.generations[0][0].generation_info
    assert info is not None
    assert info["finish_reason"] == "stop"
    assert info["pinfold"]["cache"]["hit_kind"] == "miss"


async def test_llm_async_and_streams(fake: Any) -> None:
    assert await PinfoldLLM(runtime=fake(DONE)).ainvoke("a") == "ok"
    assert list(PinfoldLLM(runtime=fake(DONE)).stream("a"))[:2] == ["o", "k"]
    assert "".join([text async for text in PinfoldLLM(runtime=fake(DONE)).astream("a")]) == "ok"
