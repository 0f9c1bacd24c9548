"""The docs check finds each kind of problem, and nothing in a page that is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.docs_check import check, runnable

GOOD = """
# A title

See [the guide](docs/guide.md), [its part](docs/guide.md#what-it-costs-and-saves), [above](#a-title) and
[elsewhere](https://example.org/none). Run `make test`, `make demo ARGS="--model PATH"` or `pinfold chat MODEL`.

```python
async with runtime() as rt:
    await rt.achat([])
```

```bash
pip install 'pinfold[langchain,embedded]'
cat question.txt | pinfold chat smollm2 --max-tokens 20   # from stdin
pinfold pins check prompt.json \\
    --json && make bench
```
"""
GUIDE = "# Guide\n\n## What it costs, and *saves*\n\n<!-- run -->\n```python\nprint(1)\n```\n\n```python\nx = 1\n```\n"


@pytest.fixture
def project(tmp_path: Path):
    """A project whose README has the given text, and what check says of it."""

    def project(readme: str) -> list[str]:
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "README.md").write_text(readme)
        (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")
        (tmp_path / "docs" / "guide.md").write_text(GUIDE)
        (tmp_path / "Makefile").write_text("test: x\n\ty\nbench:\ndemo: ## Run\n")
        (tmp_path / "pyproject.toml").write_text("[project.optional-dependencies]\nlangchain = []\nembedded = []\n")
        return [str(problem) for problem in check(tmp_path)]

    return project


def test_a_page_that_is_right(project) -> None:
    assert project(GOOD) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[x](docs/none.md)", "README.md:1: link to docs/none.md: there is no such file"),
        ("[x](../outside.md)", "README.md:1: link to ../outside.md: there is no such file"),
        ("![x](docs/none.png)", "README.md:1: link to docs/none.png: there is no such file"),
        ("[x](docs/guide.md#none)", "README.md:1: link to docs/guide.md#none: there is no such heading"),
        ("[x](#none)", "README.md:1: link to #none: there is no such heading"),
        ("a\n\n```python\nok = 1\nfor x in:\n```", "README.md:5: the code does not compile: invalid syntax"),
        ("<!-- run -->\n```bash\nls\n```", "README.md:3: <!-- run --> stands above a block that is no python"),
        ("`pinfold chatt`", "README.md:1: `pinfold` has no command 'chatt'"),
        ("`pinfold pins show`", "README.md:1: `pinfold pins` has no command 'show'"),
        ("```\n$ pinfold chat --fast\n```", "README.md:2: `pinfold chat` has no option --fast"),
        ("`echo | pinfold --nothing`", "README.md:1: `pinfold` has no option --nothing"),
        ("`make tea`", "README.md:1: there is no `make tea`"),
        ("```bash\ncd x && make PYTHON=python3 tea\n```", "README.md:2: there is no `make tea`"),
        ("x\npip install pinfold[langchain,fast]", "README.md:2: there is no extra 'fast'"),
        ("in /home/somebody/models", "README.md:1: /home/somebody/models is a path of somebody's machine"),
    ],
)
def test_each_problem_is_found_with_its_line(project, text: str, problem: str) -> None:
    assert project(text) == [problem]


def test_a_missing_readme_is_a_problem(project, tmp_path: Path) -> None:
    project(GOOD)
    (tmp_path / "README.md").unlink()
    assert [str(problem) for problem in check(tmp_path)] == ["README.md:1: there is no such page"]


def test_only_marked_blocks_are_run(project, tmp_path: Path) -> None:
    project(GOOD)
    assert [(page.name, block.code) for page, block in runnable(tmp_path)] == [("docs/guide.md", "print(1)\n")]
