"""Sample texts, from the Python that runs: code, tool schemas and prose, in two sets that share nothing."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from pydoc_data import topics

__all__ = ["CALIBRATION", "GATE", "HELD_OUT", "sample_texts"]

Source = tuple[str, ...]

# name -> kind, then what it is taken from. Nothing stands in two of the three.
CALIBRATION: Mapping[str, Source] = {
    "code": ("code", "textwrap", "csv"),
    "tools": ("tools", "statistics", "glob", "ast"),
    "prose": ("prose", "exceptions", "naming", "types"),
}
GATE: Mapping[str, Source] = {
    "tools": ("tools", "shlex", "random", "subprocess", "os"),
    "code": ("code", "bisect", "sched", "queue"),
    "prose": ("prose", "booleans", "numbers", "strings", "typesseq", "assignment", "exprlists"),
}
HELD_OUT: Mapping[str, Source] = {
    "tools": ("tools", "shutil", "tempfile", "inspect", "calendar"),
    "code": ("code", "argparse"),
    "code and docs": ("code", "json.decoder", "heapq", "fractions"),
    "prose": ("prose", "compound", "import", "class"),
}


def sample_texts(sources: Mapping[str, Source]) -> dict[str, str]:
    """The texts, by name. Each is long enough for two thousand tokens and more."""
    makers = {"code": _code, "tools": _tools, "prose": _prose}
    return {name: makers[kind](*what) for name, (kind, *what) in sources.items()}


def _code(*modules: str) -> str:
    return "\n".join(inspect.getsource(importlib.import_module(module)) for module in modules)


def _prose(*names: str) -> str:
    return "\n\n".join(topics.topics.get(name, "") for name in names)  # names differ a little between versions


def _tools(*modules: str) -> str:
    """Functions of modules, written as an agent's tool definitions."""
    return "\n".join(json.dumps(schema) for module in modules for schema in _schemas(module))


def _schemas(module: str) -> list[dict[str, object]]:
    schemas: list[dict[str, object]] = []
    for name, function in sorted(vars(importlib.import_module(module)).items()):
        if name.startswith("_") or not inspect.isfunction(function) or function.__module__ != module:
            continue
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        schema = {
            "name": f"{module}_{name}",
            "description": (inspect.getdoc(function) or "")[:600],
            "parameters": {
                "type": "object",
                "properties": {p.name: {"type": "string", "description": f"{p.name} of {name}"} for p in parameters},
                "required": [p.name for p in parameters if p.default is p.empty],
            },
        }
        schemas.append({"type": "function", "function": schema})
    return schemas
