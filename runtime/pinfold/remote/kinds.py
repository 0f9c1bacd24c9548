"""What is known of each kind of server before it is asked, and what its request fields are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pinfold.remote.facts import Feature, Known

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of server.

    Attributes:
        features: what every server of the kind has or lacks, with the reason.
        samplers: our names of sampling options, by its names; others are refused where they are not at their default.
        salt: its field for a salt.
        schema_field: its field for a JSON schema beside a raw prompt; "" takes response_format there too.
        open_chat, open_text: how a chat and a raw prompt ask for an answer of any length: the field is left out, is
            null, or is what the window leaves, counted here.
        calls_by_schema: a forced call is a JSON schema in its chats, since nothing else would hold it.
        no_top_k: its value for no limit.
    """

    features: Mapping[str, Feature] = field(default_factory=dict)
    samplers: Mapping[str, str] = field(default_factory=dict)
    salt: str = ""
    schema_field: str = ""
    open_chat: Literal["omit", "count"] = "omit"
    open_text: Literal["omit", "null", "count"] = "omit"
    calls_by_schema: bool = False
    no_top_k: int = 0


def _features(**known: tuple[Known, str]) -> Mapping[str, Feature]:
    return {name.replace("_", " "): Feature(*value) for name, value in known.items()}


def _with_salt(features: Mapping[str, Feature], known: Known, reason: str) -> Mapping[str, Feature]:
    return {**features, "cache_salt": Feature(known, reason)}


_LLAMA_SERVER = Kind(
    features=_with_salt(
        _features(
            prefix_caching=("yes", "each slot keeps its last prompt, and prompts of other slots go to memory"),
            cached_tokens=("yes", "usage.prompt_tokens_details and timings.cache_n"),
            usage_in_streams=("yes", "stream_options.include_usage"),
            json_schema=("yes", "it turns schemas into grammars"),
            forced_calls=("yes", "a call is held to its form as a JSON schema"),
            raw_prompts=("yes", "/v1/completions"),
            token_prompts=("yes", "prompts may be lists of token ids"),
            tokenizer=("yes", "/tokenize and /detokenize"),
        ),
        "no",
        "it has no salts, all its requests share what is cached",
    ),
    samplers={
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repeat_penalty",
        "penalty_window": "repeat_last_n",
    },
    schema_field="json_schema",
)

_VLLM = Kind(
    features=_features(
        usage_in_streams=("yes", "stream_options.include_usage"),
        slots=("no", "it batches without fixed slots"),
        slot_files=("no", "it has no slots; LMCache keeps KV outside the GPU"),
        json_schema=("yes", "response_format"),
        tool_calls=("unknown", "it needs --enable-auto-tool-choice and --tool-call-parser"),
        forced_calls=("yes", "tool_choice required or named is held by its structured outputs"),
        raw_prompts=("yes", "/v1/completions"),
        token_prompts=("yes", "prompts may be lists of token ids"),
        tokenizer=("yes", "/tokenize and /detokenize"),
        chat_template=("no", "it does not show its chat template"),
    ),
    samplers={"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition_penalty"},
    salt="cache_salt",
    open_text="null",
)

_SGLANG = Kind(
    features=_features(
        usage_in_streams=("yes", "stream_options.include_usage"),
        slots=("no", "it batches without fixed slots"),
        slot_files=("no", "it has no slots"),
        json_schema=("yes", "response_format"),
        tool_calls=("unknown", "it needs --tool-call-parser"),
        forced_calls=("unknown", "it needs --tool-call-parser"),
        raw_prompts=("yes", "/v1/completions"),
        token_prompts=("yes", "prompts may be lists of token ids"),
        chat_template=("no", "it does not show its chat template"),
    ),
    samplers={"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition_penalty"},
    salt="cache_salt",
    open_text="count",
    no_top_k=-1,
)

_LLAMA_CPP_PYTHON = Kind(
    features=_with_salt(
        _features(
            prefix_caching=("yes", "it keeps the last prompt"),
            cached_tokens=("no", "it does not report what it reused"),
            usage_in_streams=("no", "its streams carry no usage"),
            slots=("no", "it answers one request at a time"),
            slot_files=("no", "it has no slots"),
            json_schema=("yes", "response_format of type json_object with a schema"),
            tool_calls=("unknown", "it hands tools to the chat template and does not read calls; they are read here"),
            forced_calls=("yes", "a call is held to its form as a JSON schema"),
            raw_prompts=("yes", "/v1/completions"),
            token_prompts=("no", "prompts are text"),
            tokenizer=("yes", "/extras/tokenize and /extras/detokenize"),
            chat_template=("no", "it does not show its chat template"),
        ),
        "no",
        "it has no salts, all its requests share what is cached",
    ),
    samplers={"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"},
    open_text="null",
    calls_by_schema=True,
)

_MLX_LM = Kind(
    features=_with_salt(
        _features(
            prefix_caching=("yes", "it keeps the caches of its last prompts"),
            cached_tokens=("yes", "usage.prompt_tokens_details"),
            usage_in_streams=("yes", "stream_options.include_usage"),
            slots=("no", "it has no slots"),
            slot_files=("no", "it has no slots"),
            json_schema=("no", "it has no constrained decoding"),
            tool_calls=("yes", "it reads calls where the model's template has tools"),
            forced_calls=("no", "it has no constrained decoding"),
            raw_prompts=("yes", "/v1/completions"),
            token_prompts=("no", "prompts are text"),
            tokenizer=("no", "it does not tokenize for others"),
            chat_template=("no", "it does not show its chat template"),
        ),
        "no",
        "it has no salts, all its requests share what is cached",
    ),
    samplers={
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "penalty_window": "repetition_context_size",
    },
    open_chat="count",
    open_text="count",
)

_MESH_LLM = Kind(
    features=_features(
        prefix_caching=("yes", "each stage keeps prefixes by its own policy"),
        cached_tokens=("unknown", "read from usage or skippy.kv.* where a reply has them"),
        slots=("no", "its stages place requests themselves"),
        slot_files=("no", "its stages place requests themselves"),
        token_prompts=("no", "prompts are text"),
    ),
)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "llama-server": _LLAMA_SERVER,
        "vllm": _VLLM,
        "sglang": _SGLANG,
        "llama-cpp-python": _LLAMA_CPP_PYTHON,
        "mlx-lm": _MLX_LM,
        "mesh-llm": _MESH_LLM,
        "openai": Kind(),
    }
)
