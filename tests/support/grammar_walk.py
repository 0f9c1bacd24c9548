"""What a grammar over the vocabulary of single bytes lets through."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pinfold.output.constraint import Constraint
from tests.support.byte_vocabulary import N_VOCAB, ByteVocabulary


def tool(name: str, properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties or {}, "required": list(properties or {}), **more}
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": parameters}}


TOOLS = [tool("read", {"path": {"type": "string"}}), tool("add", {"a": {"type": "integer"}, "b": {"type": "integer"}})]


DOCUMENT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def allowed(constraint: Constraint, size: int = N_VOCAB) -> set[int]:
    row = np.zeros(size, np.float32)
    constraint.apply(row)
    assert set(np.unique(row)) <= {0.0, -np.inf}
    return set(np.flatnonzero(row == 0).tolist())


def walk(constraint: Constraint, text: str) -> bool:
    """Whether the grammar takes `text`, byte by byte, tags as their tokens."""
    for token in ByteVocabulary()(text.encode()):
        if token not in allowed(constraint):
            return False
        constraint.accept(token)
    return True


def call(name: str, arguments: dict[str, Any]) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
