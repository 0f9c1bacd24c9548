"""Real servers, started once for all tests of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from pinfold import Runtime
from pinfold.models import resolve
from tests.support.servers import llama_cpp_python_server, llama_server, mlx_lm_server


@dataclass(frozen=True)
class Served:
    """A server's kind and address, and a Runtime on it."""

    kind: str
    address: str
    rt: Runtime


@pytest.fixture(scope="session")
def gguf(smollm2: str) -> str:
    return str(resolve(smollm2).path)


@pytest.fixture(scope="session")
def llama(gguf: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """llama-server with two slots that can be saved."""
    _need("xllamacpp")
    files = tmp_path_factory.mktemp("slots")
    with llama_server(gguf, files=files) as address, Runtime(address, store="off") as rt:
        yield Served("llama-server", address, rt)


@pytest.fixture(scope="session")
def llama_messages(llama: Served) -> Iterator[Served]:
    """The same server, which renders the chats itself."""
    with Runtime(llama.address, store="off", rendering="messages") as rt:
        yield Served("llama-server", llama.address, rt)


@pytest.fixture(scope="session")
def llama_cpp_python(gguf: str) -> Iterator[Served]:
    _need("sse_starlette")
    with llama_cpp_python_server(gguf) as address, Runtime(address, store="off") as rt:
        yield Served("llama-cpp-python", address, rt)


@pytest.fixture(scope="session")
def mlx_lm(gguf: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    _need("mlx_lm")
    _need("gguf")
    from tests.support.mlx_folders import convert_gguf

    folder = tmp_path_factory.mktemp("mlx-served") / "smollm2"
    convert_gguf(Path(gguf), folder)
    _flatten(folder / "tokenizer_config.json")
    _widen(folder / "model.safetensors")
    with mlx_lm_server(folder) as address, Runtime(address, store="off", n_ctx=2048) as rt:
        yield Served("mlx-lm", address, rt)
    shutil.rmtree(folder)


@pytest.fixture(params=["llama", "llama_messages", "llama_cpp_python", "mlx_lm"])
def served(request: pytest.FixtureRequest) -> Served:
    """Each server in turn."""
    found: Served = request.getfixturevalue(request.param)
    return found


def _flatten(config: Path) -> None:
    """Special tokens as text, as transformers wants them."""
    value = json.loads(config.read_text())
    plain = {k: v["content"] if isinstance(v, dict) and "content" in v else v for k, v in value.items()}
    config.write_text(json.dumps(plain))


def _widen(weights: Path) -> None:
    """float32, which the CPU multiplies several times faster than float16."""
    import mlx.core as mx

    wide = {name: array.astype(mx.float32) for name, array in mx.load(str(weights)).items()}
    mx.save_safetensors(str(weights), wide)


def _need(module: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install 'pinfold[dev]'")
