"""One Runtime per process for equal settings, so that several adapters share an engine and its pins."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from pinfold.options import RuntimeOptions
from pinfold.runtime import Runtime

__all__ = ["shared_runtime"]

_lock = threading.Lock()
_runtimes: dict[tuple[str, RuntimeOptions], Runtime] = {}


def shared_runtime(model: str | os.PathLike[str], **options: Any) -> Runtime:
    """The process's Runtime for `model` and `options`, opened at first use and closed at exit.

    One that was closed by hand is opened anew. Raises what `Runtime` raises.
    """
    key = (os.fspath(model), RuntimeOptions.parse(options))
    with _lock:
        runtime = _runtimes.get(key)
        if runtime is None or runtime.closed:
            runtime = _runtimes[key] = Runtime(model, **options)
        return runtime


@atexit.register
def _close_all() -> None:
    with _lock:
        while _runtimes:
            _runtimes.popitem()[1].close()
