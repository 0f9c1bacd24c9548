"""The choice of an engine: what runs what, and that a refusal says why and what works instead."""

from __future__ import annotations

from dataclasses import replace
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
BOTH = replace(GGUF, other=MLX)
SCRIPTED = ResolvedModel("scripted", "scripted", None, "the scripted engine")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What importlib.metadata says is installed."""
    packages = {"llama-cpp-python": "0.3.36", "llguidance": "1.9.1", "mlx": "0.32.4", "mlx-lm": "0.31.0"}

    def version(package: str) -> str:
        if package not in packages:
            raise PackageNotFoundError(package)
        return packages[package]

    monkeypatch.setattr(probe, "version", version)
    monkeypatch.setattr(probe.sys, "platform", "linux")
    return packages


@pytest.mark.usefixtures("installed")
class TestChoice:
    @pytest.mark.parametrize(
        ("model", "engine", "chosen"),
        [
            (GGUF, "auto", "llama.cpp"),
            (GGUF, "llama.cpp", "llama.cpp"),
            (MLX, "auto", "mlx"),
            (MLX, "mlx", "mlx"),
            (SCRIPTED, "auto", "scripted"),
            (SCRIPTED, "scripted", "scripted"),
            (REMOTE, "auto", "server"),
            (REMOTE, "server", "server"),
            (BOTH, "llama.cpp", "llama.cpp"),
            (BOTH, "mlx", "mlx"),
        ],
    )
    def test_what_runs_what(self, model: ResolvedModel, engine: str, chosen: str) -> None:
        choice = choose_engine(model, engine)
        assert choice.engine == chosen
        assert all(choice.reasons)

    @pytest.mark.parametrize(
        ("model", "engine", "reason"),
        [
            (MLX, "llama.cpp", "llama.cpp engine does not run tiny-4bit.*'mlx' or 'auto'"),
            (GGUF, "mlx", "mlx engine does not run tiny.*'llama.cpp' or 'auto'"),
            (REMOTE, "llama.cpp", "does not run http://localhost.*'server' or 'auto'"),
            (GGUF, "server", "server engine does not run tiny.*'llama.cpp' or 'auto'"),
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

    @pytest.mark.parametrize("missing", ["mlx", "mlx-lm"])
    def test_missing_mlx_names_the_extras_and_what_runs_without(
        self, installed: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        del installed[missing]
        remedy = rf"{missing} is not installed.*'pinfold\[mlx\]'.*'pinfold\[mlx-cuda\]'.*GGUF"
        with pytest.raises(EngineUnavailableError, match=remedy):
            choose_engine(MLX)
        monkeypatch.setattr(probe.sys, "platform", "darwin")
        with pytest.raises(EngineUnavailableError, match=r"'pinfold\[mlx\]'\. Use a GGUF"):
            choose_engine(MLX)

    def test_mlx_that_is_too_old(self, installed: dict[str, str]) -> None:
        installed["mlx-lm"] = "0.29.1"
        with pytest.raises(EngineUnavailableError, match=r"0\.29\.1 is older than 0\.30"):
            choose_engine(MLX)

    def test_the_scripted_engine_needs_nothing(self, installed: dict[str, str]) -> None:
        installed.clear()
        assert choose_engine(SCRIPTED).engine == "scripted"


class TestBothForms:
    """A folder with a GGUF file and safetensors of one model."""

    def test_llama_cpp_where_mlx_has_no_gpu(self, installed: dict[str, str]) -> None:
        choice = choose_engine(BOTH)
        assert (choice.engine, choice.model, choice.fallback) == ("llama.cpp", BOTH, None)
        assert any("mlx was left out: on the CPU" in reason for reason in choice.reasons)

    def test_mlx_where_it_has_one_and_llama_cpp_behind_it(self, installed: dict[str, str]) -> None:
        installed["mlx-cuda-13"] = "0.32.4"
        choice = choose_engine(BOTH)
        assert (choice.engine, choice.model) == ("mlx", MLX)
        assert choice.fallback is not None
        assert (choice.fallback.engine, choice.fallback.model) == ("llama.cpp", BOTH)
        del installed["llama-cpp-python"]
        assert choose_engine(BOTH).fallback is None

    @pytest.mark.parametrize(("missing", "chosen"), [("mlx-lm", "llama.cpp"), ("llama-cpp-python", "mlx")])
    def test_the_other_one_where_a_package_is_missing(
        self, installed: dict[str, str], missing: str, chosen: str
    ) -> None:
        installed["mlx-cuda-13"] = "0.32.4"
        del installed[missing]
        choice = choose_engine(BOTH)
        assert choice.engine == chosen
        assert choice.fallback is None

    def test_what_is_asked_for_has_no_fallback(self, installed: dict[str, str]) -> None:
        installed["mlx-cuda-13"] = "0.32.4"
        assert choose_engine(BOTH, "mlx").fallback is None

    def test_none_can_run(self, installed: dict[str, str]) -> None:
        installed.clear()
        with pytest.raises(EngineUnavailableError, match="llama-cpp-python is not installed"):
            choose_engine(BOTH)


class TestSurvey:
    def test_everything_installed(self, installed: dict[str, str]) -> None:
        rows = {row.engine: row for row in survey()}
        assert rows["llama.cpp"].usable
        assert rows["llama.cpp"].recommended
        assert rows["llama.cpp"].version == "0.3.36"
        assert (rows["mlx"].version, rows["mlx"].usable, rows["mlx"].recommended) == ("0.31.0", True, False)
        assert "on the CPU" in rows["mlx"].why
        assert (rows["server"].usable, rows["server"].recommended) == (True, False)
        assert "pinfold doctor URL" in rows["server"].why
        assert rows["scripted"].usable
        assert not rows["scripted"].recommended

    def test_nothing_installed(self, installed: dict[str, str]) -> None:
        installed.clear()
        rows = {row.engine: row for row in survey()}
        assert not rows["llama.cpp"].usable
        assert "pip install 'pinfold[llama-cpp]'" in rows["llama.cpp"].why

    def test_mlx_is_recommended_where_there_is_a_gpu_for_it(
        self, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        installed["mlx-cuda-12"] = "0.32.4"
        assert next(row for row in survey() if row.engine == "mlx").recommended
        del installed["mlx-cuda-12"]
        monkeypatch.setattr(probe.sys, "platform", "darwin")
        monkeypatch.setattr(probe.platform, "machine", lambda: "arm64")
        row = next(row for row in survey() if row.engine == "mlx")
        assert (row.recommended, "Metal" in row.why) == (True, True)
        monkeypatch.setattr(probe.platform, "machine", lambda: "x86_64")
        assert not next(row for row in survey() if row.engine == "mlx").recommended

    def test_what_is_lost_without_llguidance_is_said(self, installed: dict[str, str]) -> None:
        del installed["llguidance"]
        row = next(row for row in survey() if row.engine == "llama.cpp")
        assert row.usable
        assert "llguidance" in row.why
