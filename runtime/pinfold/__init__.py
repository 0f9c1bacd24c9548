"""Pinfold pins the long prompts of agents: computed once, kept as prefix-KV sessions, forked for every task.

``Runtime`` is the door; `langchain_pinfold` and `llama_index.llms.pinfold` are built on it. Importing this package
needs no engine and no framework.
"""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

from pinfold import errors
from pinfold.engines.script import Script
from pinfold.errors import PinfoldError
from pinfold.options import GenerationOptions, RuntimeOptions
from pinfold.prompt_check import PromptCheck, PromptFinding
from pinfold.results import (
    CacheReport,
    Completion,
    Delta,
    DraftReport,
    InvalidToolCall,
    Miss,
    Timings,
    ToolCall,
    Usage,
)
from pinfold.runtime import Runtime
from pinfold.session import Session
from pinfold.sessions.manager import SessionInfo
from pinfold.sessions.pins import Pin
from pinfold.shared import shared_runtime

__all__ = [
    "CacheReport",
    "Completion",
    "Delta",
    "DraftReport",
    "GenerationOptions",
    "InvalidToolCall",
    "Miss",
    "Pin",
    "PinfoldError",
    "PromptCheck",
    "PromptFinding",
    "Runtime",
    "RuntimeOptions",
    "Script",
    "Session",
    "SessionInfo",
    "Timings",
    "ToolCall",
    "Usage",
    "errors",
    "shared_runtime",
]

try:
    __version__ = version("pinfold")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

logging.getLogger("pinfold").addHandler(logging.NullHandler())
