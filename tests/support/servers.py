"""Real servers as processes on loopback, each with a real model."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["llama_cpp_python_server", "llama_server", "mlx_lm_server"]

_SCRIPT = Path(__file__).parents[1] / "benchmarks" / "llama_server.py"
# Two processes compute on the same cores in turn: threads that wait by spinning would take them from each other.
_ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
_START_S = 120.0


@contextmanager
def llama_server(
    model: str, *, n_ctx: int = 2048, slots: int = 2, threads: int = 2, files: Path | None = None
) -> Iterator[str]:
    """The address of a llama-server (package xllamacpp) of a GGUF file; slots are saved to the folder `files`."""
    command = [str(_SCRIPT), model, "--threads", str(threads), "--slots", str(slots), "--n-ctx", str(n_ctx)]
    if files is not None:
        command += ["--slot-save-path", f"{files}/"]
    with _running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"] + "/v1"


@contextmanager
def llama_cpp_python_server(model: str, *, n_ctx: int = 2048) -> Iterator[str]:
    """The address of llama-cpp-python's own server of a GGUF file."""
    port = _free_port()
    command = ["-m", "llama_cpp.server", "--model", model, "--n_ctx", str(n_ctx), "--host", "127.0.0.1"]
    with _running([*command, "--port", str(port)]) as process:
        yield _ready(process, f"http://127.0.0.1:{port}/v1")


@contextmanager
def mlx_lm_server(folder: Path) -> Iterator[str]:
    """The address of an mlx_lm.server of a model's folder."""
    port = _free_port()
    command = ["-m", "mlx_lm.server", "--model", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    with _running(command) as process:
        yield _ready(process, f"http://127.0.0.1:{port}/v1")


@contextmanager
def _running(command: list[str], **pipes: int) -> Iterator[subprocess.Popen[bytes]]:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | pipes
    process = subprocess.Popen([sys.executable, *command], env=_ENVIRONMENT, **quiet)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _ready(process: subprocess.Popen[bytes], address: str) -> str:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        assert process.poll() is None, f"{process.args} ended"
        with suppress(OSError), urllib.request.urlopen(f"{address}/models", timeout=5):  # noqa: S310 - loopback
            return address
        time.sleep(0.1)
    raise AssertionError(f"{process.args} did not start")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
