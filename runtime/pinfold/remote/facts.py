"""What is known of a server: what kind it is, and what it can do, cannot do, or does not say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn

from pinfold.engines.base import Capabilities, Mode, ModelInfo
from pinfold.errors import UnsupportedModeError

__all__ = ["FEATURES", "Feature", "Known", "ServerFacts", "capabilities_of"]

Known = Literal["yes", "no", "unknown"]

FEATURES = (
    "prefix caching",
    "cached tokens",
    "usage in streams",
    "cache_salt",
    "slots",
    "slot files",
    "json schema",
    "tool calls",
    "forced calls",
    "raw prompts",
    "token prompts",
    "tokenizer",
    "chat template",
    "own rendering",
)
"""What a probe finds out about every server, in the order in which `pinfold doctor` shows it."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Whether a server has something, and how that is known."""

    known: Known
    reason: str


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server.

    Attributes:
        kind: ``llama-server``, ``vllm``, ``sglang``, ``llama-cpp-python``, ``mlx-lm``, ``mesh-llm``, or ``openai`` for
            any other that speaks its API.
        model: the id that requests name; "" where the server serves one and names none.
        n_ctx: tokens that one request may use; None where the server does not say.
        slots: requests that it answers at once, where it has a fixed number of places for them.
        template, bos_token, eos_token: the chat template and what it refers to, where the server shows them.
        fields: names that its request bodies take beyond the common ones; None where it does not say.
    """

    kind: str
    address: str
    model: str
    models: tuple[str, ...] = ()
    version: str | None = None
    n_ctx: int | None = None
    n_ctx_train: int | None = None
    slots: int | None = None
    template: str | None = field(default=None, repr=False)
    bos_token: str = ""
    eos_token: str = ""
    fields: frozenset[str] | None = field(default=None, repr=False)
    features: Mapping[str, Feature] = field(default_factory=dict, repr=False)

    def known(self, name: str) -> Known:
        """Whether it has `name`, one of `FEATURES`."""
        feature = self.features.get(name)
        return "unknown" if feature is None else feature.known

    def has(self, name: str) -> bool:
        """Whether it is known to have `name`."""
        return self.known(name) == "yes"

    @property
    def streams(self) -> bool:
        """Whether a whole answer is better streamed: where streams have usage, as they may be timed piece by piece."""
        return self.known("usage in streams") != "no"

    def with_feature(self, name: str, known: Known, reason: str) -> ServerFacts:
        """The same with `name` known better."""
        return replace(self, features={**self.features, name: Feature(known, reason)})

    def refuse(self, what: str, name: str, remedy: str) -> NoReturn:
        """Raises UnsupportedModeError for `what`, which would need the feature `name`."""
        feature = self.features.get(name)
        reason = feature.reason if feature is not None else "the server does not say that it can"
        msg = f"{what}: the server at {self.address} ({self.kind}): {reason}. {remedy}"
        raise UnsupportedModeError(msg)


def capabilities_of(facts: ServerFacts, n_ctx: int) -> Capabilities:
    """The same as capabilities of an engine. `n_ctx` stands in where the server does not say."""
    features = [(name, facts.features.get(name, Feature("unknown", "the server does not say"))) for name in FEATURES]
    facets = {
        "server": facts.kind,
        "address": facts.address,
        "version": facts.version or "unknown",
        "model": facts.model or "unknown",
        "n_ctx": "unknown" if facts.n_ctx is None else str(facts.n_ctx),
        "slots": "unknown" if facts.slots is None else str(facts.slots),
    }
    identity = hashlib.sha256(json.dumps([facts.kind, facts.model, facts.version]).encode()).hexdigest()
    return Capabilities(
        engine=facts.kind,
        device="server",
        model=ModelInfo(
            name=facts.model,
            architecture="unknown",
            identity=identity,
            n_vocab=0,
            n_ctx_train=facts.n_ctx_train or 0,
            n_layer=0,
            chat_template=facts.template,
            bos_token=facts.bos_token,
            eos_token=facts.eos_token,
        ),
        n_ctx=facts.n_ctx or n_ctx,
        n_cells=0,
        n_seq=facts.slots or 0,
        trim="any",
        fingerprint=identity,
        bytes_per_token=0,
        modes=tuple(
            Mode(name, f.known == "yes", f.known == "yes", f"unknown: {f.reason}" if f.known == "unknown" else f.reason)
            for name, f in features
        ),
        facets=facets,
    )
