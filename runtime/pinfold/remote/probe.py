"""Asks a server what it is. Every question may fail; what is not answered stays unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinfold.errors import ModelNotFoundError, ServerError
from pinfold.remote.address import Address
from pinfold.remote.facts import Feature, Known, ServerFacts
from pinfold.remote.faults import reply_error
from pinfold.remote.kinds import KINDS
from pinfold.remote.transport import Answered, Transport

__all__ = ["probe"]

_TIMEOUT = 15.0
_CHAT_BODIES = ("ChatCompletionRequest", "CreateChatCompletionRequest")


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a server said to each question; None where it has no such path."""

    models: Any
    server: str
    props: Any
    slots: Any
    version: Any
    api: Any
    model_info: Any
    server_info: Any
    health: Any


async def probe(transport: Transport, address: Address, model: str | None, key: str | None) -> ServerFacts:
    """What is at `address`; `model` is the id that was asked for, None for the first that it has.

    Raises:
        ServerError: it cannot be reached, refuses the key, or is no server of this kind.
        ModelNotFoundError: it has no such model.
    """
    first = await transport.ask("GET", f"{address.api}/models", within=_TIMEOUT)
    if first.status in (401, 403):
        raise reply_error(address.api, first.status, first.text, key)
    answers = await _answers(transport, address, first)
    kind = _kind(answers)
    if kind == "openai" and first.status != 200:
        msg = (
            f"{address.api}/models answered {first.status}: no OpenAI-compatible API is there. Give the address that "
            f"ends in /v1."
        )
        raise ServerError(msg)
    facts = _facts(kind, address, answers, model)
    for name, feature in _found(kind, answers, facts).items():
        facts = facts.with_feature(name, feature.known, feature.reason)
    return facts


async def _answers(transport: Transport, address: Address, models: Answered) -> _Answers:
    async def get(path: str) -> Any:
        try:
            return (await transport.ask("GET", f"{address.root}{path}", within=_TIMEOUT)).json()
        except ServerError:
            return None

    paths = ("/props", "/slots", "/version", "/openapi.json", "/get_model_info", "/get_server_info", "/health")
    props, slots, version, api, model_info, server_info, health = await asyncio.gather(*map(get, paths))
    server = models.headers.get("server", "")
    return _Answers(models.json(), server, props, slots, version, api, model_info, server_info, health)


def _kind(a: _Answers) -> str:
    owners = {str(m.get("owned_by")) for m in _models(a)}
    title = _path(a.api, "info", "title")
    if a.server == "llama.cpp" or owners & {"llamacpp"} or _path(a.props, "default_generation_settings") is not None:
        return "llama-server"
    if "mesh-llm" in owners:
        return "mesh-llm"
    if "sglang" in owners or _path(a.model_info, "model_path") is not None:
        return "sglang"
    if "vllm" in owners or (_path(a.version, "version") is not None and _path(a.api, "info", "title") == "FastAPI"):
        return "vllm"
    if isinstance(title, str) and "llama.cpp Python API" in title:
        return "llama-cpp-python"
    if a.server.startswith("BaseHTTP/") and _path(a.health, "status") == "ok":
        return "mlx-lm"
    return "openai"


def _facts(kind: str, address: Address, a: _Answers, wanted: str | None) -> ServerFacts:
    models = tuple(str(m["id"]) for m in _models(a) if isinstance(m.get("id"), str))
    if wanted is not None and models and wanted not in models:
        msg = f"The server at {address.api} has no model {wanted!r}. It has: {', '.join(models)}."
        raise ModelNotFoundError(msg)
    model = wanted or (models[0] if models else "")
    entry = next((m for m in _models(a) if m.get("id") == model), {})
    version = _path(a.version, "version") or _path(a.props, "build_info") or _path(a.server_info, "version")
    return ServerFacts(
        kind=kind,
        address=address.api,
        model=model,
        models=models,
        version=str(version) if version else None,
        n_ctx=_count(
            _path(a.props, "default_generation_settings", "n_ctx"),
            entry.get("max_model_len"),
            _path(entry, "meta", "n_ctx"),
            entry.get("context_length"),
            _path(a.server_info, "context_length"),
        ),
        n_ctx_train=_count(_path(entry, "meta", "n_ctx_train")),
        slots=_count(_path(a.props, "total_slots"), len(a.slots) if isinstance(a.slots, list) else None),
        template=_text(_path(a.props, "chat_template")),
        bos_token=_text(_path(a.props, "bos_token")) or "",
        eos_token=_text(_path(a.props, "eos_token")) or "",
        fields=_fields(a.api),
        features=dict(KINDS[kind].features),
    )


def _found(kind: str, a: _Answers, facts: ServerFacts) -> dict[str, Feature]:
    """What the answers say beyond what every server of the kind has."""
    found: dict[str, Feature] = {}
    if facts.template:
        found["chat template"] = Feature("yes", "/props shows it")
    if kind == "llama-server":
        found |= _llama_server(a, facts)
    if kind in ("vllm", "sglang") and facts.fields is not None:
        salted: Known = "yes" if "cache_salt" in facts.fields else "no"
        found["cache_salt"] = Feature(salted, f"its API {'takes' if salted == 'yes' else 'has no'} cache_salt")
    if kind == "vllm":
        found["cached tokens"] = Feature("unknown", "it reports them with --enable-prompt-tokens-details")
    if kind == "sglang":
        found |= _sglang(a)
    return found


def _llama_server(a: _Answers, facts: ServerFacts) -> dict[str, Feature]:
    found = {
        "slots": Feature("yes", f"{facts.slots} of them" if facts.slots else "requests may name one"),
        "slot files": Feature("unknown", "it needs --slot-save-path, which shows at the first save"),
    }
    if not facts.template:
        found["chat template"] = Feature("no", "/props shows none")
    tools = _path(a.props, "chat_template_caps", "supports_tools")
    if tools is False:
        found["tool calls"] = Feature("no", "the model's template has no tools, and the server leaves them out")
    elif tools is True:
        found["tool calls"] = Feature("yes", "the model's template has tools; the server needs --jinja to use it")
    return found


def _sglang(a: _Answers) -> dict[str, Feature]:
    found: dict[str, Feature] = {}
    off = _path(a.server_info, "disable_radix_cache")
    if isinstance(off, bool):
        found["prefix caching"] = Feature("no" if off else "yes", f"disable_radix_cache is {off}")
    reports = _path(a.server_info, "enable_cache_report")
    if isinstance(reports, bool):
        found["cached tokens"] = Feature("yes" if reports else "no", f"enable_cache_report is {reports}")
    paths = _path(a.api, "paths")
    if isinstance(paths, Mapping):
        has = "/tokenize" in paths
        found["tokenizer"] = Feature("yes" if has else "no", f"it has {'' if has else 'no '}/tokenize")
    return found


def _models(a: _Answers) -> list[Mapping[str, Any]]:
    data = _path(a.models, "data")
    return [m for m in data if isinstance(m, Mapping)] if isinstance(data, list) else []


def _fields(api: Any) -> frozenset[str] | None:
    """The names that a chat request may have, from an OpenAPI description."""
    for name in _CHAT_BODIES:
        properties = _path(api, "components", "schemas", name, "properties")
        if isinstance(properties, Mapping):
            return frozenset(map(str, properties))
    return None


def _path(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _count(*values: Any) -> int | None:
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
