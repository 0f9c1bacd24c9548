"""`pinfold spill`, `export` and `import`: onto the disk, out of a store and into another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import Result

from pinfold import Runtime
from pinfold.keeping import sessions_folder
from pinfold.kv.codec import FoldedKV, fold
from pinfold.kv.recipe import LADDER, Recipe
from pinfold.kv.recipe_file import dump_recipe
from pinfold.sessions.fingerprint import digest_at_hand
from pinfold.store import SessionStore
from pinfold.store.portable import read_portable, write_portable
from pinfold.store.recipes import RecipeFiles
from tests.support.kv_samples import Geometry, make_recipe, make_snapshot
from tests.support.store_sessions import opened, record

Run = Callable[..., Result]
MESSAGES = [{"role": "system", "content": "You are a careful librarian who knows every shelf."}]
TOKENS = 48


@pytest.fixture
def prompt(tmp_path: Path) -> str:
    path = tmp_path / "prompt.json"
    path.write_text(json.dumps({"messages": MESSAGES}))
    return str(path)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return make_recipe(Geometry())


@pytest.fixture(scope="module")
def folded(recipe: Recipe) -> FoldedKV:
    return fold(make_snapshot(Geometry(), TOKENS), recipe, LADDER[4])


@pytest.fixture
def kept(tmp_path: Path, folded: FoldedKV) -> Iterator[SessionStore]:
    """A store with the pin "lib", folded by a recipe that is not there yet."""
    (tmp_path / "from").mkdir(mode=0o700)
    with opened(sessions_folder(tmp_path / "from")) as store:
        facts = record("lib", TOKENS, kind="pin", codec=folded.codec, raw_bytes=folded.raw_bytes, extra={"ttl": 60.0})
        store.put(facts, list(range(TOKENS)), folded.data)
        yield store


@pytest.fixture
def export(run: Run, tmp_path: Path, recipe: Recipe, kept: SessionStore) -> Callable[..., Result]:
    """Exports "lib" to lib.pinfold, its recipe being there."""
    RecipeFiles(tmp_path / "from" / "models").write(recipe.digest(), dump_recipe(recipe))

    def export(*args: str) -> Result:
        return run("export", "lib", str(tmp_path / "lib.pinfold"), "--store", str(tmp_path / "from"), *args)

    return export


@pytest.fixture
def take(run: Run, tmp_path: Path) -> Callable[..., Result]:
    """Imports lib.pinfold into another store."""

    def take(*args: str) -> Result:
        return run("import", str(tmp_path / "lib.pinfold"), "--store", str(tmp_path / "to"), *args)

    return take


class TestSpill:
    def test_the_pin_is_there_for_the_next_runtime(self, run: Run, tmp_path: Path, prompt: str) -> None:
        args = ["--model", "scripted", "--engine", "scripted", "--store", str(tmp_path / "s"), "--ttl", "2h"]
        result = run("spill", prompt, "--name", "lib", *args, "--json")
        assert result.exit_code == 0
        assert "without loss" in result.stderr
        data = json.loads(result.stdout)
        assert (data["name"], data["kind"], data["model"]) == ("lib", "pin", "scripted")
        assert 7_000 < data["ttl_left"] <= 7_200
        with Runtime("scripted", store=tmp_path / "s") as runtime:
            [pin] = runtime.pins()
            assert (pin.name, pin.tokens) == ("lib", data["tokens"])
            done = runtime.chat([*MESSAGES, {"role": "user", "content": "Hello."}], max_tokens=1)
            assert done.usage.cached_tokens == pin.tokens

    def test_for_people(self, run: Run, tmp_path: Path, prompt: str) -> None:
        args = ["--model", "scripted", "--engine", "scripted", "--store", str(tmp_path / "s")]
        out = run("spill", prompt, "--name", "lib", *args).stdout
        assert "pin 'lib'" in out
        assert "on disk" in out

    def test_the_digest_of_a_model_file_is_known_before(
        self, run: Run, tmp_path: Path, prompt: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = tmp_path / "m.gguf"
        model.write_bytes(bytes(1000))
        monkeypatch.setattr("pinfold.models.resolve", lambda name: SimpleNamespace(path=model))
        args = ["--model", "scripted", "--engine", "scripted", "--store", str(tmp_path / "s")]
        assert run("spill", prompt, "--name", "lib", *args).exit_code == 0
        assert digest_at_hand(model, RecipeFiles(tmp_path / "s" / "models")) is not None

    def test_a_store_that_is_off_computes_nothing(self, run: Run, runtime, prompt: str) -> None:
        result = run("spill", prompt, "--name", "lib", "--store", "off")
        assert (result.exit_code, "--store" in result.stderr) == (1, True)
        assert runtime.opened == []

    def test_what_was_not_stored_is_an_error(self, run: Run, tmp_path: Path, prompt: str, monkeypatch) -> None:
        monkeypatch.setattr("pinfold.sessions.upkeep.Upkeep.flush", lambda self: None)
        args = ["--model", "scripted", "--engine", "scripted", "--store", str(tmp_path / "s")]
        result = run("spill", prompt, "--name", "lib", *args)
        assert (result.exit_code, "not stored" in result.stderr) == (1, True)


class TestExportAndImport:
    def test_a_session_and_its_recipe_arrive(self, export, take, tmp_path: Path, recipe: Recipe, folded) -> None:
        assert export().exit_code == 0
        result = take("--json")
        assert result.exit_code == 0
        data = json.loads(result.stdout)
        assert (data["name"], data["codec"]) == ("lib", folded.codec)
        assert 0 < data["ttl_left"] <= 60
        with opened(sessions_folder(tmp_path / "to")) as store:
            session = store.get(data["key"])
            assert bytes(session.payload) == folded.data
            assert session.tokens.tolist() == list(range(TOKENS))
        assert RecipeFiles(tmp_path / "to" / "models").read(recipe.digest()) == dump_recipe(recipe)
        assert {(tmp_path / "to" / name).stat().st_mode & 0o777 for name in (".", "models", "sessions")} == {0o700}

    def test_under_another_name(self, export, take, tmp_path: Path) -> None:
        export()
        assert "pin 'other'" in take("--name", "other").stdout
        assert take().exit_code == 0
        with opened(sessions_folder(tmp_path / "to")) as store:
            assert sorted(entry.name for entry in store.entries()) == ["lib", "other"]

    @pytest.mark.parametrize("name", ["", "auto:x", "n" * 201])
    def test_a_name_that_is_none(self, export, take, tmp_path: Path, name: str) -> None:
        export()
        result = take("--name", name)
        assert (result.exit_code, "A name has" in result.stderr) == (1, True)
        assert not (tmp_path / "to").exists()

    def test_show_says_whether_it_can_be_unfolded(self, run: Run, kept: SessionStore, tmp_path: Path, recipe) -> None:
        args = ("show", "lib", "--json", "--store", str(tmp_path / "from"))
        assert json.loads(run(*args).stdout)["why"] == "its recipe is not here"
        RecipeFiles(tmp_path / "from" / "models").write(recipe.digest(), dump_recipe(recipe))
        data = json.loads(run(*args).stdout)
        assert (data["readable"], data["recipe"]) == (True, recipe.digest())

    def test_the_recipe_that_is_there_stays(self, export, take, tmp_path: Path, recipe: Recipe) -> None:
        export()
        known = Recipe(recipe.fingerprint, recipe.sections, {"balanced": 2, "compact": 3})
        assert known.digest() == recipe.digest()
        (tmp_path / "to").mkdir(mode=0o700)
        RecipeFiles(tmp_path / "to" / "models").write(recipe.digest(), dump_recipe(known))
        assert take().exit_code == 0
        assert RecipeFiles(tmp_path / "to" / "models").read(recipe.digest()) == dump_recipe(known)

    def test_a_file_that_is_there_needs_force(self, export) -> None:
        assert export().exit_code == 0
        again = export()
        assert (again.exit_code, "--force" in again.stderr) == (1, True)
        assert export("--force").exit_code == 0

    def test_without_its_recipe_nothing_is_exported(self, run: Run, tmp_path: Path, kept: SessionStore) -> None:
        result = run("export", "lib", str(tmp_path / "f"), "--store", str(tmp_path / "from"))
        assert (result.exit_code, "recipe" in result.stderr) == (1, True)
        assert not (tmp_path / "f").exists()

    def test_a_recipe_that_is_another_is_not_exported(self, export, tmp_path: Path, recipe: Recipe) -> None:
        other = dump_recipe(make_recipe(Geometry(layers=2)))
        RecipeFiles(tmp_path / "from" / "models").write(recipe.digest(), other)
        assert export().exit_code == 1

    @pytest.mark.parametrize(
        ("part", "problem"),
        [
            ("no recipe", "its recipe is not the one"),
            ("another recipe", "its recipe is not the one"),
            ("other tokens", "payload is of 48 tokens"),
            ("no KV", "no session that can be imported"),
            ("more KV than it says", "needs more than"),
        ],
    )
    def test_what_does_not_fit_together_is_not_stored(
        self, take, kept: SessionStore, tmp_path: Path, recipe: Recipe, part: str, problem: str
    ) -> None:
        good = dump_recipe(recipe)
        session = kept.get(kept.entries()[0].key)
        file, entry = tmp_path / "lib.pinfold", session.entry
        match part:
            case "no recipe":
                write_portable(file, session, None)
            case "another recipe":
                write_portable(file, session, dump_recipe(make_recipe(Geometry(layers=2))))
            case "other tokens":
                fewer = entry.model_copy(update={"n_tokens": TOKENS - 1})
                write_portable(file, type(session)(fewer, session.tokens[:-1], session.payload), good)
            case "no KV":
                write_portable(file, type(session)(entry, session.tokens, memoryview(b"else")), good)
            case _:
                small = memoryview(fold(make_snapshot(Geometry(layers=120), TOKENS)).data)
                liar = entry.model_copy(update={"raw_bytes": 1})
                write_portable(file, type(session)(liar, session.tokens, small), None)
        assert read_portable(file).record.name == "lib"
        result = take()
        assert (result.exit_code, problem in result.stderr) == (1, True)
        assert not (tmp_path / "to").exists()

    def test_a_tampered_file_is_not_stored(self, export, take, tmp_path: Path) -> None:
        export()
        file = tmp_path / "lib.pinfold"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        result = take()
        assert (result.exit_code, "Nothing was stored" in result.stderr) == (1, True)
        assert not (tmp_path / "to").exists()
