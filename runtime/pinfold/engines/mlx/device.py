"""The device that MLX computes on, the number types it computes with, and the memory it may hold on to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pinfold.errors import UnsupportedModeError
from pinfold.options import RuntimeOptions

__all__ = ["Device", "choose_device", "device_memory", "limit_memory", "whole_cells"]

log = logging.getLogger("pinfold.mlx")

# Freed buffers that MLX keeps for reuse. Caches that grow leave ever larger ones behind.
_POOL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """`name` is metal, cuda or cpu; `why` says in words how it was chosen."""

    name: str
    why: str


def choose_device(mx: Any, options: RuntimeOptions) -> Device:
    """Sets MLX's default device: the GPU where there is one, the CPU otherwise or with ``n_gpu_layers=0``.

    Raises:
        UnsupportedModeError: options that MLX has nothing for.
    """
    if options.n_gpu_layers > 0:
        msg = "MLX puts all layers on one device: set n_gpu_layers to -1 (the GPU) or 0 (the CPU)."
        raise UnsupportedModeError(msg)
    if options.n_threads is not None:
        msg = "MLX chooses its threads itself. Leave n_threads unset, or use a GGUF file: it runs on llama.cpp."
        raise UnsupportedModeError(msg)
    gpu = _gpu(mx)
    if gpu is not None and options.n_gpu_layers:
        mx.set_default_device(mx.gpu)
        return Device(gpu, f"this machine's GPU ({gpu})")
    mx.set_default_device(mx.cpu)
    why = "n_gpu_layers=0" if gpu is not None else "MLX finds no GPU here"
    log.warning("MLX computes on the CPU (%s): many times slower than llama.cpp with a GGUF file of the model.", why)
    return Device("cpu", why)


def whole_cells(compute: str, device: Device) -> str:
    """The type of cells that ``f16`` means: bf16 for a model that computes in it on a GPU, whose attention then need
    not convert."""
    return "bf16" if compute == "bfloat16" and device.name != "cpu" else "f16"


def device_memory(mx: Any, device: Device) -> int | None:
    """Bytes that the GPU may still give to this process; None on a CPU or where MLX does not say."""
    if device.name == "cpu":
        return None
    total = _total_memory(mx)
    return None if total is None else max(total - int(mx.get_active_memory()), 0)


def limit_memory(mx: Any, device: Device) -> Callable[[], None]:
    """Bounds what MLX takes and holds on to, and on Metal lets the model's memory be wired. Returns what undoes it."""
    pool = mx.set_cache_limit(_POOL_BYTES)
    total = _total_memory(mx) if device.name != "cpu" else None
    limit = mx.set_memory_limit(total) if total is not None else None
    wired = None
    if device.name == "metal":
        wired = mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))

    def undo() -> None:
        mx.set_cache_limit(pool)
        if limit is not None:
            mx.set_memory_limit(limit)
        if wired is not None:
            mx.set_wired_limit(wired)
        mx.clear_cache()
        if threading.current_thread() is not threading.main_thread():
            mx.clear_streams()  # a thread that ends with streams open takes the process down at its exit

    return undo


def _total_memory(mx: Any) -> int | None:
    facts = mx.device_info()
    names = ("max_recommended_working_set_size", "total_memory", "memory_size")
    return next((int(facts[name]) for name in names if facts.get(name)), None)


def _gpu(mx: Any) -> str | None:
    for name in ("metal", "cuda"):
        backend = getattr(mx, name, None)
        if backend is not None and backend.is_available():
            return name
    return None
