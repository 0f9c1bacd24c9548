"""The device that MLX computes on, the number types it computes with, and the memory it may hold on to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pinfold.errors import UnsupportedModeError
from pinfold.options import RuntimeOptions

__all__ = ["CELLS", "Device", "choose_cells", "choose_device", "limit_memory"]

log = logging.getLogger("pinfold.mlx")

CELLS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
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


def choose_cells(kv_resident: str, compute: str, device: Device) -> str:
    """The type of KV cells that `kv_resident` means: f16, bf16 or f32.

    A model that computes in bf16 on a GPU keeps bf16 cells for ``f16``: equal bytes, and attention need not convert.

    Raises:
        UnsupportedModeError: a type that this engine does not have.
    """
    kind = kv_resident.lower()
    if kind not in CELLS:
        msg = (
            f"kv_resident={kv_resident!r} is not a type of cells that the MLX engine has. Give one of "
            f"{', '.join(CELLS)}; sessions are folded smaller when they are idle."
        )
        raise UnsupportedModeError(msg)
    return "bf16" if kind == "f16" and compute == "bfloat16" and device.name != "cpu" else kind


def limit_memory(mx: Any, device: Device) -> Callable[[], None]:
    """Bounds what MLX holds on to, and on Metal lets the model's memory be wired. Returns what undoes both."""
    pool = mx.set_cache_limit(_POOL_BYTES)
    wired = None
    if device.name == "metal":
        wired = mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))

    def undo() -> None:
        mx.set_cache_limit(pool)
        if wired is not None:
            mx.set_wired_limit(wired)
        mx.clear_cache()
        if threading.current_thread() is not threading.main_thread():
            mx.clear_streams()  # a thread that ends with streams open takes the process down at its exit

    return undo


def _gpu(mx: Any) -> str | None:
    for name in ("metal", "cuda"):
        backend = getattr(mx, name, None)
        if backend is not None and backend.is_available():
            return name
    return None
