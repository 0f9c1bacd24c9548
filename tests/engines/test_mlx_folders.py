"""Model folders that are damaged, hostile or not for this engine: typed errors that say what to do."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinfold import Runtime
from pinfold.engines.mlx import library
from pinfold.engines.mlx.engine import MlxEngine
from pinfold.engines.mlx.folder import read_folder
from pinfold.errors import EngineUnavailableError, ModelFormatError, ModelNotFoundError, UnsupportedModeError
from pinfold.options import RuntimeOptions


@pytest.fixture
def folder(random_mlx: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(random_mlx("llama"), tmp_path / "llama"))


def open_engine(path: Path, **options: object) -> MlxEngine:
    return MlxEngine(path, path.name, RuntimeOptions.parse({"n_ctx": 256, "max_sequences": 4, **options}))


def change(file: Path, **values: Any) -> None:
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**config, **values}), encoding="utf-8")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, file: str) -> None:
    (folder / file).unlink()
    with pytest.raises(ModelNotFoundError, match=file.replace("model.", r"model\*?\.")):
        open_engine(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\0"])
def test_settings_that_are_no_json_object(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(ModelFormatError, match=file):
        open_engine(folder)


def test_a_vocabulary_that_is_none(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 3}', encoding="utf-8")
    with pytest.raises(ModelFormatError, match="no tokenizer"):
        open_engine(folder)


@pytest.mark.parametrize("keep", [0, 7, 100, 5_000])
def test_weights_that_are_cut_short(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelFormatError, match=r"model\.safetensors"):
        open_engine(folder)


@pytest.mark.parametrize(
    "header",
    [b"[]", b'{"a": 1}', b'{"a": {}}', b'{"a": {"data_offsets": [0, 99999999999]}}', b'{"a": {"data_offsets": "xy"}}'],
)
def test_weights_whose_header_lies(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    with pytest.raises(ModelFormatError, match=r"model\.safetensors"):
        read_folder(folder)


def test_a_part_that_the_index_names_is_missing(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}')
    with pytest.raises(ModelNotFoundError, match=r"lacks model-2\.safetensors"):
        open_engine(folder)


@pytest.mark.parametrize("kind", ["../../evil", "", 3, "a" * 100, None])
def test_an_architecture_that_is_no_name(folder: Path, kind: object) -> None:
    change(folder / "config.json", model_type=kind)
    with pytest.raises(ModelFormatError, match="no usable model_type"):
        open_engine(folder)


def test_an_architecture_that_mlx_lm_lacks(folder: Path) -> None:
    change(folder / "config.json", model_type="no_such_model")
    with pytest.raises(UnsupportedModeError, match=r"'no_such_model'.*GGUF"):
        open_engine(folder)


def test_code_in_the_folder_is_never_run(folder: Path) -> None:
    change(folder / "config.json", model_file="model.py")
    (folder / "model.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UnsupportedModeError, match="code of its own"):
        open_engine(folder)


def test_weights_of_another_model(folder: Path) -> None:
    change(folder / "config.json", hidden_size=32)
    with pytest.raises(ModelFormatError, match="cannot load llama"):
        open_engine(folder)


def test_a_model_without_an_end(folder: Path) -> None:
    change(folder / "config.json", eos_token_id=None)
    change(folder / "tokenizer_config.json", eos_token=None)
    vocabulary = (folder / "tokenizer.json").read_text(encoding="utf-8").replace("<|im_end|>", "<|other|>")
    (folder / "tokenizer.json").write_text(vocabulary, encoding="utf-8")
    with pytest.raises(ModelFormatError, match="eos_token_id"):
        open_engine(folder)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kv_resident": "q7_1"}, "f16, bf16, f32"),
        ({"n_threads": 2}, "threads itself"),
        ({"n_gpu_layers": 3}, "all layers on one device"),
    ],
)
def test_options_of_another_engine_are_refused(folder: Path, options: dict[str, object], reason: str) -> None:
    with pytest.raises(UnsupportedModeError, match=reason):
        open_engine(folder, **options)


def test_cells_are_of_the_type_that_was_asked_for(folder: Path) -> None:
    sizes, prints = {}, set()
    for kind in ("f16", "bf16", "f32"):
        engine = open_engine(folder, kv_resident=kind)
        sizes[kind] = engine.capabilities.bytes_per_token
        prints.add(engine.capabilities.fingerprint)
        assert engine.capabilities.mode("fold").usable == (kind != "f32")
        assert engine.capabilities.mode(f"kv_resident {kind}").usable
        engine.close()
    assert sizes["f32"] == 2 * sizes["f16"] == 2 * sizes["bf16"]
    assert len(prints) == 3


def test_other_weights_are_another_identity(folder: Path) -> None:
    before = read_folder(folder).identity
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert read_folder(folder).identity != before


def test_the_cpu_is_warned_about(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine = open_engine(folder, n_gpu_layers=0)
    engine.close()
    assert engine.capabilities.device == "cpu"
    assert not engine.capabilities.mode("device").recommended
    assert "many times slower" in caplog.text


def test_a_package_that_does_not_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        msg = f"no {name}"
        raise ImportError(msg)

    monkeypatch.setattr(library, "import_module", broken)
    with pytest.raises(EngineUnavailableError, match=r"no mlx\.core.*'pinfold\[mlx\]'"):
        open_engine(folder)


def test_a_runtime_says_the_same(folder: Path) -> None:
    change(folder / "config.json", model_type="no_such_model")
    with pytest.raises(UnsupportedModeError, match="no_such_model"):
        Runtime(folder, store="off", n_ctx=256)


def test_a_template_may_be_a_file_or_one_of_several(folder: Path) -> None:
    change(folder / "tokenizer_config.json", chat_template=[{"name": "default", "template": "A"}, {"name": "b"}])
    assert read_folder(folder).chat_template == "A"
    (folder / "chat_template.jinja").write_text("B")
    assert read_folder(folder).chat_template == "B"
