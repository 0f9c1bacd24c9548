"""The choice of an engine: what runs what, and that a refusal says why and what works instead."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from pinfold.engines import probe
from pinfold.engines.probe import choose_engine, survey
from pinfold.errors import EngineUnavailableError, UnsupportedModeError
from pinfold.models import ResolvedModel

GGUF = ResolvedModel("tiny", "gguf", Path("tiny.gguf"), "a path")
MLX = ResolvedModel("tiny-4bit", "mlx", Path("tiny-4bit"), "a folder of safetensors")
REMOTE = ResolvedModel("http://localhost:8080/v1", "remote", None, "a server's URL")
SCRIPTED = ResolvedModel("scripted", "scripted", None, "the scripted engine")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What importlib.metadata says is installed."""
    packages = {"llama-cpp-python": "0.3.36", "llguidance": "1.9.1"}

    def version(package: str) -> str:
        if package not in packages:
            raise PackageNotFoundError(package)
        return packages[package]

    monkeypatch.setattr(probe, "version", version)
    return packages


@pytest.mark.usefixtures("installed")
class TestChoice:
    @pytest.mark.parametrize(
        ("model", "engine", "chosen"),
        [
            (GGUF, "auto", "llama.cpp"),
            (GGUF, "llama.cpp", "llama.cpp"),
            (SCRIPTED, "auto", "scripted"),
            (SCRIPTED, "scripted", "scripted"),
        ],
    )
    def test_what_runs_what(self, model: ResolvedModel, engine: str, chosen: str) -> None:
        choice = choose_engine(model, engine)
        assert choice.engine == chosen
        assert all(choice.reasons)

    @pytest.mark.parametrize(
        ("model", "engine", "reason"),
        [
            (MLX, "auto", "MLX engine is not in this version.*GGUF"),
            (MLX, "llama.cpp", "tiny-4bit is a model in MLX format"),
            (GGUF, "mlx", "MLX engine is not in this version.*GGUF"),
            (REMOTE, "auto", "localhost.*servers are not supported in this version.*GGUF"),
            (REMOTE, "llama.cpp", "servers are not supported"),
            (SCRIPTED, "llama.cpp", "does not run scripted.*'scripted'"),
            (GGUF, "scripted", "does not run tiny.*'llama.cpp'"),
            (GGUF, "llama.ccp", "no engine 'llama.ccp'.*Did you mean 'llama.cpp'.*Known engines: auto, llama.cpp, mlx"),
            (GGUF, "", "Known engines"),
        ],
    )
    def test_a_refusal_has_the_reason_and_what_works(self, model: ResolvedModel, engine: str, reason: str) -> None:
        with pytest.raises(UnsupportedModeError, match=reason):
            choose_engine(model, engine)


class TestInstallation:
    def test_a_missing_package_names_the_install_command(self, installed: dict[str, str]) -> None:
        del installed["llama-cpp-python"]
        with pytest.raises(EngineUnavailableError, match=r"not installed.*pip install 'pinfold\[llama-cpp\]'"):
            choose_engine(GGUF)

    @pytest.mark.parametrize("old", ["0.3.35", "0.2.90", "0.3"])
    def test_a_package_that_is_too_old(self, installed: dict[str, str], old: str) -> None:
        installed["llama-cpp-python"] = old
        with pytest.raises(EngineUnavailableError, match=rf"{old} is older than 0\.3\.36.*--upgrade"):
            choose_engine(GGUF)

    @pytest.mark.parametrize("new", ["0.3.36", "0.3.37.post1", "0.4.0", "1.0", "0.3.36+cu124"])
    def test_newer_packages_are_taken(self, installed: dict[str, str], new: str) -> None:
        installed["llama-cpp-python"] = new
        assert choose_engine(GGUF).engine == "llama.cpp"

    def test_the_scripted_engine_needs_nothing(self, installed: dict[str, str]) -> None:
        installed.clear()
        assert choose_engine(SCRIPTED).engine == "scripted"


class TestSurvey:
    def test_everything_installed(self, installed: dict[str, str]) -> None:
        installed["mlx-lm"] = "0.31.0"
        rows = {row.engine: row for row in survey()}
        assert rows["llama.cpp"].usable
        assert rows["llama.cpp"].recommended
        assert rows["llama.cpp"].version == "0.3.36"
        assert (rows["mlx"].version, rows["mlx"].usable) == ("0.31.0", False)
        assert "not in this version" in rows["mlx"].why
        assert "not supported in this version" in rows["server"].why
        assert rows["scripted"].usable
        assert not rows["scripted"].recommended

    def test_nothing_installed(self, installed: dict[str, str]) -> None:
        installed.clear()
        rows = {row.engine: row for row in survey()}
        assert not rows["llama.cpp"].usable
        assert "pip install 'pinfold[llama-cpp]'" in rows["llama.cpp"].why

    def test_what_is_lost_without_llguidance_is_said(self, installed: dict[str, str]) -> None:
        del installed["llguidance"]
        row = next(row for row in survey() if row.engine == "llama.cpp")
        assert row.usable
        assert "llguidance" in row.why
