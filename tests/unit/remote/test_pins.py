"""Pins on servers, by chat messages and by our own rendering, and several servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx
from typer.testing import CliRunner

from pinfold import Runtime
from pinfold.cli.app import app
from pinfold.errors import (
    PinExpiredError,
    PinNotFoundError,
    ServerReplyError,
    ServerUnreachableError,
    SessionNotFoundError,
)
from pinfold.remote import keeper
from pinfold.remote.address import parse_address
from pinfold.remote.facts import ServerFacts
from pinfold.remote.replicas import Server, ranked
from tests.support.wire import URL, FakeServer, chat_chunks, sse

Open = Callable[..., Runtime]
SYSTEM = {"role": "system", "content": "You keep the harbour's book. " * 20}
HI = {"role": "user", "content": "Hi"}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.001)


def answer(cached: int | None, prompt: int = 120) -> bytes:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return sse(chat_chunks("Hm", usage={"prompt_tokens": prompt, "completion_tokens": 1, **details}))


def test_a_pin_is_computed_once_and_reported_as_the_servers(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(answer(0, 100), answer(99))
    pin = rt.pin([SYSTEM], name="book", ttl="5m")
    assert (pin.tokens, pin.tier, server.bodies[0]["max_tokens"]) == (100, "server", 1)
    assert server.bodies[0]["messages"][0] == SYSTEM
    done = rt.chat([SYSTEM, HI])
    assert (done.cache.hit_kind, done.cache.source, done.cache.cached_tokens) == ("server", "book", 99)
    assert [p.hits for p in rt.pins()] == [1]


def test_a_server_that_lost_a_pin_is_told_of(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(answer(0, 100), answer(3))
    rt.pin([SYSTEM], name="book")
    miss = rt.chat([SYSTEM, HI]).cache.miss
    assert miss is not None
    assert (miss.kind, miss.lost_tokens, miss.pin) == ("evicted", 97, "book")


def test_a_server_that_does_not_tell_leaves_it_unknown(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(answer(None))
    rt.pin([SYSTEM], name="book")
    report = rt.chat([SYSTEM, HI]).cache
    assert (report.hit_kind, report.cached_tokens, report.miss) == ("unknown", None, None)


def test_other_tools_another_salt_or_other_words_are_not_covered(router: respx.Router, opened: Open) -> None:
    server = FakeServer(router, owner="vllm")
    fields = {"properties": {"cache_salt": {}}}
    server.get("/openapi.json", {"components": {"schemas": {"ChatCompletionRequest": fields}}})
    rt = opened()
    server.answers(answer(0, 100), answer(100))
    rt.pin([SYSTEM], name="book", salt="a")
    tool = {"name": "weigh", "parameters": {"type": "object", "properties": {}}}
    others = [rt.chat([SYSTEM, HI], salt="b"), rt.chat([SYSTEM, HI], salt="a", tools=[tool]), rt.chat([HI], salt="a")]
    assert [done.cache.source for done in others] == [None, None, None]
    assert rt.chat([SYSTEM, HI], salt="a").cache.source == "book"
    assert [body.get("cache_salt") for body in server.bodies] == ["a", "b", "a", "a", "a"]


def test_pins_end(server: FakeServer, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    from pinfold.remote import pins

    rt = opened()
    server.answers(answer(0, 100))
    rt.pin([SYSTEM], name="short", ttl=30)
    rt.pin([SYSTEM], name="long", ttl=None)
    rt.unpin("long")
    with pytest.raises(PinNotFoundError, match="long"):
        rt.unpin("long")
    now = pins.time.time()
    monkeypatch.setattr(pins.time, "time", lambda: now + 31)
    with pytest.raises(PinExpiredError, match="short"):
        rt.session("s", pin="short")
    assert rt.pins() == []


def test_a_pin_that_nobody_uses_is_kept_warm(server: FakeServer, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_LOOK_S", 0.01)
    rt = opened(pin_refresh=0.02)
    server.answers(answer(0, 100))
    pin = rt.pin([SYSTEM], name="book")
    wait_for(lambda: len(server.requests) >= 3)
    assert server.bodies[0] == server.bodies[1] == server.bodies[2]
    assert rt.pins()[0].expires == pin.expires  # that is no use of it


def test_a_failing_server_keeps_its_pins_in_view(
    server: FakeServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_LOOK_S", 0.01)
    rt = opened(pin_refresh=0.02, retries=0)
    server.answers(answer(0, 100), httpx.ConnectError("refused"), answer(0, 100))
    rt.pin([SYSTEM], name="book")
    wait_for(lambda: len(server.requests) >= 3)
    assert [pin.name for pin in rt.pins()] == ["book"]


def test_pins_are_known_to_the_next_process_and_to_the_command(
    server: FakeServer, opened: Open, tmp_path: Path
) -> None:
    server.answers(answer(0, 100), answer(99))
    first = opened(store=tmp_path)
    pin = first.pin([SYSTEM], name="book", ttl="1h")
    first.close()

    shown = CliRunner().invoke(app, ["ls", "--store", str(tmp_path), "--json"])
    (entry,) = json.loads(shown.stdout)
    assert (entry["name"], entry["kind"], entry["server"], entry["tokens"]) == ("book", "server pin", URL, 100)
    assert "book" in CliRunner().invoke(app, ["ls", "--store", str(tmp_path)]).stdout

    second = opened(store=tmp_path)
    assert [(p.name, p.tokens, p.digest) for p in second.pins()] == [("book", 100, pin.digest)]
    assert second.chat([SYSTEM, HI]).cache.source == "book"
    second.unpin("book")
    assert json.loads(CliRunner().invoke(app, ["ls", "--store", str(tmp_path), "--json"]).stdout) == []


def test_a_record_that_is_none_is_passed_over(server: FakeServer, opened: Open, tmp_path: Path) -> None:
    from pinfold.store.remote_pins import RemotePinFiles, remote_pins_folder

    files = RemotePinFiles(remote_pins_folder(tmp_path))
    files.put({"server": URL, "name": "broken", "expires": None})
    files.put({"server": URL, "name": "over", "expires": 1.0})
    (remote_pins_folder(tmp_path) / ("0" * 64)).write_bytes(b"{")
    assert opened(store=tmp_path).pins() == []


# --- llama-server, rendered here


class LlamaServer(FakeServer):
    """With a tokenizer that has a token for each byte, and slots with files."""

    def __init__(self, router: respx.Router, **props: Any) -> None:
        super().__init__(router, owner="llamacpp")
        settings = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 3, "chat_template": TEMPLATE}
        self.get("/props", settings | props)
        self.post("/tokenize", self._tokenize)
        self.post("/detokenize", lambda body: {"content": bytes(body["tokens"]).decode()})
        self.post("/slots", self._slot)
        self.saves = True
        self.tokenizer_faults: list[Exception] = []
        self.slot_calls: list[tuple[str, str]] = []

    def _tokenize(self, body: Mapping[str, Any]) -> Any:
        del self.requests[-1]
        if self.tokenizer_faults:
            raise self.tokenizer_faults.pop(0)
        return {"tokens": [{"id": b, "piece": [b]} for b in body["content"].encode()]}

    def _slot(self, body: Mapping[str, Any]) -> Any:
        request = self.requests.pop()
        self.slot_calls.append((f"{request.url.path}?{request.url.query.decode()}", body["filename"]))
        if not self.saves:
            return httpx.Response(501, json={"error": {"message": "This server does not support slots action"}})
        return {"n_saved": 9, "n_restored": 9}


@pytest.fixture
def llama(router: respx.Router) -> LlamaServer:
    return LlamaServer(router)


def text_answer(*texts: str, cached: int = 0) -> bytes:
    usage = {"prompt_tokens": 600, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
    made: list[dict[str, Any]] = [{"choices": [{"text": text, "finish_reason": None}]} for text in texts]
    return sse([*made, {"choices": [{"text": "", "finish_reason": "stop"}], "usage": usage}])


def test_prompts_are_rendered_here_and_tools_with_them(llama: LlamaServer, opened: Open) -> None:
    rt = opened()
    llama.answers(text_answer('<tool_call>{"name": "weigh", ', '"arguments": {"n": 1}}</tool_call>'))
    tool = {"name": "weigh", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    done = rt.chat([SYSTEM, HI], tools=[tool])
    prompt = llama.bodies[-1]["prompt"]
    assert prompt.startswith("<system>You keep")
    assert "weigh" in prompt
    assert prompt.endswith("<user>Hi</><assistant>")
    assert [(call.name, call.arguments) for call in done.tool_calls] == [("weigh", {"n": 1})]
    assert "<|channel|>" in llama.bodies[-1]["preserved_tokens"]
    rt.chat([SYSTEM, HI])
    assert llama.bodies[-1]["preserved_tokens"] == []  # its template has none


def test_a_forced_call_is_held_by_its_schema(llama: LlamaServer, opened: Open) -> None:
    rt = opened()
    llama.answers(text_answer('{"name": "weigh", ', '"arguments": {"n": 1}}'))
    tool = {"name": "weigh", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    done = rt.chat([HI], tools=[tool], tool_choice="required")
    assert llama.bodies[-1]["json_schema"]["properties"]["name"] == {"const": "weigh"}
    assert [(call.name, call.arguments) for call in done.tool_calls] == [("weigh", {"n": 1})]


def test_the_pinned_prefix_is_exact_and_its_slot_is_saved(llama: LlamaServer, opened: Open) -> None:
    rt = opened()
    llama.answers(text_answer("x"))
    pin = rt.pin([SYSTEM], name="book")
    prefix = f"<system>{SYSTEM['content']}</><user>"
    assert bytes(llama.bodies[0]["prompt"]).decode() == prefix
    assert (pin.tokens, llama.bodies[0]["id_slot"]) == (len(prefix), 2)
    assert llama.slot_calls == [("/slots/2?action=save", f"pinfold-{pin.digest[:32]}.bin")]
    assert rt.capabilities.mode("slot files").usable


def test_a_server_without_slot_files(llama: LlamaServer, opened: Open) -> None:
    rt = opened()
    llama.saves = False
    llama.answers(text_answer("x"))
    rt.pin([SYSTEM], name="book")
    rt.pin([HI], name="other")
    assert len(llama.slot_calls) == 1
    assert "does not support" in rt.capabilities.mode("slot files").reason


def test_the_last_slot_is_left_for_others(llama: LlamaServer, opened: Open) -> None:
    rt = opened()
    llama.answers(text_answer("x"))
    for name in ("a", "b", "c"):
        rt.pin([{"role": "system", "content": f"{name} " * 20}], name=name)
    assert [body.get("id_slot") for body in llama.bodies] == [2, 1, None]


def test_a_pin_comes_back_from_its_file_in_the_next_process(llama: LlamaServer, opened: Open, tmp_path: Path) -> None:
    llama.answers(text_answer("x", cached=550))
    first = opened(store=tmp_path)
    pin = first.pin([SYSTEM], name="book")
    first.close()
    second = opened(store=tmp_path)
    for _ in range(2):
        second.chat([SYSTEM, HI])
    assert llama.slot_calls[1:] == [("/slots/2?action=restore", f"pinfold-{pin.digest[:32]}.bin")]
    assert [body.get("id_slot") for body in llama.bodies] == [2, 2, None]


def test_where_a_prompt_parted_from_its_pin(llama: LlamaServer, opened: Open) -> None:
    rt = opened()
    llama.answers(text_answer("x"), text_answer("x", cached=35))
    rt.pin([SYSTEM], name="book")
    miss = rt.chat([{"role": "system", "content": "You keep the harbour's book. No."}, HI]).cache.miss
    assert miss is not None
    assert (miss.pin, miss.kind, miss.where, miss.token) == ("book", "message", "message 0 (system)", 37)


def test_an_answer_stands_where_its_cache_report_cannot_be_made(llama: LlamaServer, opened: Open) -> None:
    rt = opened()
    llama.answers(text_answer("x"), text_answer("Aye", cached=35))
    rt.pin([SYSTEM], name="book")
    llama.tokenizer_faults = [httpx.ConnectError("refused")]
    done = rt.chat([{"role": "system", "content": "You keep the harbour's book. No."}, HI])
    assert (done.text, done.cache.miss, done.usage.cached_tokens) == ("Aye", None, 35)
    assert "parted from the pins is not known" in done.cache.notes[-1]


@pytest.mark.parametrize("fault", [httpx.RemoteProtocolError("gone"), httpx.ReadError("reset"), httpx.WriteError("")])
def test_an_idle_connection_that_the_server_closed(llama: LlamaServer, opened: Open, fault: Exception) -> None:
    rt = opened()
    llama.tokenizer_faults = [fault]
    assert rt.tokenize("ab") == [97, 98]
    llama.tokenizer_faults = [fault, fault]
    with pytest.raises(ServerReplyError):
        rt.tokenize("abc")


def test_tokens_are_the_servers(llama: LlamaServer, opened: Open) -> None:
    rt = opened()
    assert rt.tokenize("ab") == [97, 98]
    assert rt.detokenize([97, 98]) == "ab"
    assert rt.count_tokens([HI]) == len("<user>Hi</><assistant>")


def test_a_prompt_is_checked_by_the_servers_template(llama: LlamaServer, opened: Open) -> None:
    (finding,) = opened().check_prompt([{"role": "system", "content": "Today is 2026-12-01."}, HI]).findings
    assert (finding.kind, finding.where) == ("volatile", "message 0 (system)")
    assert finding.token == len("<system>Today is ")


def test_a_template_that_was_given_is_used(llama: LlamaServer, opened: Open) -> None:
    rt = opened(chat_template="{% for m in messages %}[{{ m.content }}]{% endfor %}")
    llama.answers(text_answer("x"))
    rt.chat([HI])
    assert llama.bodies[-1]["prompt"] == "[Hi]"


def test_messages_where_that_was_asked_for(llama: LlamaServer, opened: Open) -> None:
    rt = opened(rendering="messages")
    llama.answers(sse(chat_chunks("x")))
    rt.chat([HI])
    assert llama.bodies[-1]["messages"] == [HI]


def test_a_raw_prompt(llama: LlamaServer, opened: Open) -> None:
    rt = opened()
    llama.answers(text_answer("x ", "y"))
    assert rt.complete("Once", max_tokens=3).text == "x y"
    assert (llama.bodies[-1]["prompt"], llama.bodies[-1]["max_tokens"]) == ("Once", 3)


def test_lmcache_is_told_of_pins(router: respx.Router, opened: Open) -> None:
    llama = LlamaServer(router)
    told: list[Any] = []
    router.post("http://lm.test/lookup").mock(
        return_value=httpx.Response(200, json={"layout_info": {"one": ["LocalCPUBackend", 512]}})
    )
    router.post("http://lm.test/pin").mock(
        side_effect=lambda r: told.append(json.loads(r.content)) or httpx.Response(200, json={})
    )
    llama.answers(text_answer("x"))
    pin = opened(lmcache="http://lm.test").pin([SYSTEM], name="book")
    assert (told[0]["instance_id"], told[0]["location"], len(told[0]["tokens"])) == (
        "one",
        "LocalCPUBackend",
        pin.tokens,
    )
    assert pin.warning is None


def test_an_lmcache_that_does_not_answer_is_a_warning(llama: LlamaServer, opened: Open, router: respx.Router) -> None:
    router.post("http://lm.test/lookup").mock(side_effect=httpx.ConnectError("refused"))
    llama.answers(text_answer("x"))
    pin = opened(lmcache="http://lm.test").pin([SYSTEM], name="book")
    assert pin.warning is not None
    assert "LMCache" in pin.warning


# --- sessions


def test_named_sessions(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(answer(0, 100))
    session = rt.session("talk")
    session.chat([HI])
    assert [(s.name, s.tokens, s.tier) for s in rt.sessions()] == [("talk", 101, "server")]
    session.fork("other")
    rt.drop_session("talk")
    with pytest.raises(SessionNotFoundError, match="talk"):
        rt.drop_session("talk")
    assert [s.name for s in rt.sessions()] == ["other"]


# --- replicas

OTHER = "http://other.test:8000/v1"


@pytest.fixture
def two(router: respx.Router) -> dict[str, FakeServer]:
    return {url: FakeServer(router, url) for url in (URL, OTHER)}


def test_each_key_has_its_own_order_and_keeps_it_when_servers_come_and_go() -> None:
    urls = [f"http://h{n}/v1" for n in range(5)]
    servers = [Server(parse_address(u), ServerFacts("openai", u, "m"), None) for u in urls]
    keys = [f"key {n}" for n in range(500)]
    first = {key: ranked(servers, key)[0] for key in keys}
    counts = [list(first.values()).count(server) for server in servers]
    assert min(counts) > 60
    fewer = servers[:-1]
    moved = [key for key in keys if ranked(fewer, key)[0] is not first[key]]
    assert moved == [key for key in keys if first[key] is servers[-1]]


def test_what_begins_alike_stays_together(two: dict[str, FakeServer], opened: Open) -> None:
    rt = opened(base_url=OTHER)
    for server in two.values():
        server.answers(answer(0))
    for n in range(6):
        rt.chat([SYSTEM, {"role": "user", "content": str(n)}])
    assert sorted(len(server.requests) for server in two.values()) == [0, 6]
    for n in range(40):
        rt.chat([{"role": "system", "content": str(n)}, HI])
    assert min(len(server.requests) for server in two.values()) >= 8


def test_a_server_that_fails_is_stood_in_for_once_and_that_is_said(two: dict[str, FakeServer], opened: Open) -> None:
    rt = opened(base_url=OTHER, retries=0)
    for server in two.values():
        server.answers(answer(5))
    rt.chat([SYSTEM, HI])
    (home,) = [server for server in two.values() if server.requests]
    (other,) = [server for server in two.values() if not server.requests]
    home.answers(httpx.ConnectError("refused"))
    done = rt.chat([SYSTEM, HI])
    assert done.text == "Hm"
    assert f"{other.url} answered instead" in done.cache.notes[0]
    assert rt.chat([SYSTEM, HI]).cache.notes == ()  # and is asked first for a while
    assert (len(home.requests), len(other.requests)) == (2, 2)


def test_when_both_fail_that_is_an_error(two: dict[str, FakeServer], opened: Open) -> None:
    rt = opened(base_url=OTHER, retries=0)
    for server in two.values():
        server.answers(httpx.ConnectError("refused"))
    with pytest.raises(ServerUnreachableError):
        rt.chat([SYSTEM, HI])


def test_a_stream_that_has_begun_is_not_gone_on_with_elsewhere(two: dict[str, FakeServer], opened: Open) -> None:
    rt = opened(base_url=OTHER)
    for server in two.values():
        server.streams(sse(chat_chunks("Good", finish=None), done=False), httpx.ReadError("reset"))
    with pytest.raises(ServerReplyError, match="broke off"):
        list(rt.stream([SYSTEM, HI]))
    assert sum(len(server.requests) for server in two.values()) == 1


def test_one_server_that_is_down_from_the_start(router: respx.Router, opened: Open) -> None:
    server = FakeServer(router, OTHER)
    router.get(f"{URL}/models").mock(side_effect=httpx.ConnectError("refused"))
    server.answers(answer(0))
    rt = opened(base_url=OTHER)
    assert rt.chat([SYSTEM, HI]).text == "Hm"


def test_a_pin_and_what_begins_with_it_are_on_one_server(two: dict[str, FakeServer], opened: Open) -> None:
    rt = opened(base_url=OTHER)
    for server in two.values():
        server.answers(answer(0, 100))
    rt.pin([SYSTEM], name="book")
    for n in range(5):
        rt.chat([SYSTEM, {"role": "user", "content": str(n)}], session=f"s{n}")
    assert sorted(len(server.requests) for server in two.values()) == [0, 6]
