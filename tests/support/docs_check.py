"""Checks that README, CHANGELOG and docs/ say what is true: links, code, commands, make targets, extras, paths.

A Python block with the comment ``<!-- run -->`` above it is also run by the test suite, on the embedded model.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

REQUIRED = ("README.md", "CHANGELOG.md")
RUN_MARK = "<!-- run -->"
SHELLS = {"bash", "sh", "shell", "console", "text", ""}
LOCAL_PATH = re.compile(r"(?<![\w.~:/])(?:/(?:home|root|Users|work|mnt)/|[A-Z]:\\)\S*")
MAKE = re.compile(r"(?:^|[\s`(&;])make((?:\s+[A-Z_]+=(?:\"[^\"]*\"|\S+))*)\s+([a-z][a-z-]*)")
EXTRA = re.compile(r"pinfold\[([\w,\s-]+)\]")


@dataclass(frozen=True)
class Problem:
    """Something in a page that is not so."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Block:
    """A fenced block of code. `line` is that of its first line of code."""

    language: str
    code: str
    line: int
    run: bool


class Page:
    """One Markdown file, parsed."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(root).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.tokens = MarkdownIt("commonmark").enable("table").parse(self.text)

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of its headings, as GitHub makes them."""
        seen: Counter[str] = Counter()
        found = set()
        for heading, inline in pairwise(self.tokens):
            if heading.type != "heading_open":
                continue
            words = "".join(t.content for t in inline.children or () if t.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        return found

    @cached_property
    def blocks(self) -> list[Block]:
        """Its fenced blocks."""
        found, before = [], Token("", "", 0)
        for token in self.tokens:
            if token.type == "fence" and token.map:
                language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
                run = before.type == "html_block" and before.content.strip().endswith(RUN_MARK)
                found.append(Block(language, token.content, token.map[0] + 2, run))
            before = token
        return found

    def inline(self) -> Iterator[tuple[Token, int]]:
        """Every piece of inline text and markup, with the line that its paragraph begins on."""
        for token in self.tokens:
            for child in token.children or ():
                yield child, (token.map or [0])[0] + 1

    def commands(self) -> Iterator[tuple[str, int]]:
        """Everything that could be a line for the shell."""
        for block in self.blocks:
            if block.language in SHELLS:
                lines = block.code.replace("\\\n", "  ").splitlines()
                yield from ((line.strip().removeprefix("$ "), block.line + n) for n, line in enumerate(lines))
        yield from ((token.content, line) for token, line in self.inline() if token.type == "code_inline")


class Facts:
    """What there really is: make targets, extras, and the commands with their options."""

    def __init__(self, root: Path) -> None:
        makefile = (root / "Makefile").read_text(encoding="utf-8")
        self.targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        self.extras = set(project["optional-dependencies"])

    @cached_property
    def command(self) -> Any:
        import typer.main

        from pinfold.cli import app

        return typer.main.get_command(app)

    def wrong_in_command(self, words: list[str]) -> str | None:
        """What is wrong with the arguments of `pinfold`; None if nothing is."""
        command, shown = self.command, "pinfold"
        options = _options(command)
        for word in words:
            if word.startswith("-") and word != "-":
                name = word.partition("=")[0]
                if name not in options:
                    return f"`{shown}` has no option {name}"
            elif getattr(command, "commands", None) and word[0] not in "[<":
                if word not in command.commands:
                    return f"`{shown}` has no command {word!r}"
                command, shown = command.commands[word], f"{shown} {word}"
                options |= _options(command)
        return None


def _options(command: Any) -> set[str]:
    return {"--help", "-h"} | {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


def pages(root: Path) -> list[Page]:
    """The pages that are checked."""
    files = [*(root / name for name in REQUIRED), *sorted((root / "docs").glob("**/*.md"))]
    return [Page(root, file) for file in files if file.exists()]


def check(root: Path) -> list[Problem]:
    """Every problem in the pages under `root`."""
    facts = Facts(root)
    checks = (_links, _python, _commands, _make_and_extras, _local_paths)
    missing = [Problem(name, 1, "there is no such page") for name in REQUIRED if not (root / name).exists()]
    return missing + [problem for page in pages(root) for one in checks for problem in one(root, page, facts)]


def runnable(root: Path) -> list[tuple[Page, Block]]:
    """The Python blocks that are marked to be run."""
    return [(page, block) for page in pages(root) for block in page.blocks if block.run]


def _links(root: Path, page: Page, _facts: Facts) -> Iterator[Problem]:
    for token, line in page.inline():
        target = token.attrGet("href") or token.attrGet("src")
        if not target or re.match(r"[a-z]+:", str(target)):
            continue
        path, _, anchor = str(target).partition("#")
        file = (page.path.parent / path).resolve() if path else page.path
        if not file.is_relative_to(root.resolve()) or not file.exists():
            yield Problem(page.name, line, f"link to {target}: there is no such file")
        elif anchor and file.suffix == ".md" and anchor not in Page(root, file).anchors:
            yield Problem(page.name, line, f"link to {target}: there is no such heading")


def _python(_root: Path, page: Page, _facts: Facts) -> Iterator[Problem]:
    for block in page.blocks:
        if block.run and block.language != "python":
            yield Problem(page.name, block.line, f"{RUN_MARK} stands above a block that is no python")
        if block.language in ("python", "py"):
            try:
                compile(block.code, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            except SyntaxError as e:
                yield Problem(page.name, block.line + (e.lineno or 1) - 1, f"the code does not compile: {e.msg}")


def _commands(_root: Path, page: Page, facts: Facts) -> Iterator[Problem]:
    for text, line in page.commands():
        for part in re.split(r"\|\|?|&&|;", text):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                words = part.split()
            if words[:1] == ["pinfold"] and (wrong := facts.wrong_in_command(words[1:])):
                yield Problem(page.name, line, wrong)


def _make_and_extras(_root: Path, page: Page, facts: Facts) -> Iterator[Problem]:
    for text, line in page.commands():
        for match in MAKE.finditer(text):
            if match[2] not in facts.targets:
                yield Problem(page.name, line, f"there is no `make {match[2]}`")
    for line, text in enumerate(page.text.splitlines(), 1):
        for match in EXTRA.finditer(text):
            for extra in {extra.strip() for extra in match[1].split(",")} - facts.extras:
                yield Problem(page.name, line, f"there is no extra {extra!r}")


def _local_paths(_root: Path, page: Page, _facts: Facts) -> Iterator[Problem]:
    for line, text in enumerate(page.text.splitlines(), 1):
        for match in LOCAL_PATH.finditer(text):
            yield Problem(page.name, line, f"{match[0]} is a path of somebody's machine")


def main() -> int:
    """Prints what is wrong; the exit code is 1 if anything is."""
    root = Path(__file__).resolve().parents[2]
    problems = check(root)
    for problem in problems:
        print(problem)
    print(f"docs: {len(pages(root))} pages, {len(problems)} problems, {len(runnable(root))} blocks run by the tests")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
