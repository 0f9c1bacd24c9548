"""The llama.cpp library: imported once, its log turned into Python logging."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections import deque
from functools import cache
from types import ModuleType
from typing import Any

from pinfold.errors import EngineUnavailableError

log = logging.getLogger("pinfold.llama_cpp")

_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUATION = 5
# The last complaints, so that a failed load can say why.
recent_errors: deque[str] = deque(maxlen=6)
_keep_alive: list[Any] = []
# Set while an interrupted forward may complain though all is well: its errors are logged as debug messages.
expecting_errors = threading.Event()


@cache
def load_library() -> ModuleType:
    """The `llama_cpp` module, ready for use.

    Raises:
        EngineUnavailableError: the package is missing, or its shared library does not load.
    """
    try:
        import llama_cpp
    except ImportError as e:
        msg = "The llama.cpp engine is not installed. Run: pip install 'pinfold[llama-cpp]'."
        raise EngineUnavailableError(msg) from e
    except (OSError, RuntimeError) as e:
        msg = f"llama-cpp-python is installed but its library does not load ({e}). Reinstall it for this machine."
        raise EngineUnavailableError(msg) from e
    _capture_log(llama_cpp)
    llama_cpp.llama_backend_init()
    return llama_cpp


def _capture_log(lib: ModuleType) -> None:
    line: list[str] = []
    level = logging.DEBUG

    def on_log(raw_level: int, text: bytes | None, _user: Any) -> None:
        nonlocal level
        if raw_level != _CONTINUATION:
            level = _LEVELS.get(raw_level, logging.DEBUG)
        line.append((text or b"").decode("utf-8", "replace"))
        if not line[-1].endswith("\n"):
            return
        message = "".join(line).rstrip()
        line.clear()
        if expecting_errors.is_set():
            level = logging.DEBUG
        if level >= logging.ERROR:
            recent_errors.append(message)
        if message.strip("."):
            log.log(level, "%s", message)

    callback = lib.llama_log_callback(on_log)
    _keep_alive.append(callback)  # the C side holds only the address
    lib.llama_log_set(callback, ctypes.c_void_p(0))
