"""Jinja as chat templates expect it, bounded for templates that nobody vouches for.

Jinja's immutable sandbox keeps a template away from Python's internals. This adds what it leaves open: every loop
turn and macro call is counted, and what could make one value huge at a stroke is checked before it is computed.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["MAX_OUTPUT", "MAX_SOURCE", "MAX_STEPS", "RefusalError", "TemplateEnvironment"]

MAX_SOURCE = 512 * 1024
"""Characters of a template; the longest in use have some 30,000."""
MAX_OUTPUT = 64 * 1024 * 1024
"""Characters of a rendering, and of any one value on the way to it."""
MAX_STEPS = 1_000_000
"""Loop turns and macro calls of one rendering: some seconds."""
_MAX_NUMBER = 1_000_000
_MAX_BITS = 4096
_PADDING = frozenset(
    {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "to_bytes", "wordwrap", "zfill"}
)
_MULTIPLYING = frozenset({"join", "replace"})
_WIDE_FORMAT = re.compile(r"\d{6}|\*")


class RefusalError(JinjaError):
    """The template called raise_exception: it does not take these messages."""


class _Run(threading.local):
    """What one rendering, on one thread, has used: loop turns, and the dates that it asked for."""

    steps = 0
    dates: tuple[str, ...] = ()

    def start(self) -> None:
        """Forgets the rendering before."""
        self.steps, self.dates = 0, ()


class _Generation(Extension):
    """``{% generation %}...{% endgeneration %}`` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - the form that Jinja prescribes

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment that Hugging Face chat templates are written for, with limits."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.run = _Run()
        del self.globals["lipsum"]
        self.filters.update({name: _bounded(name, function) for name, function in self.filters.items()})
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now

    def counted(self, source: str) -> nodes.Template:
        """The parsed template with a counter in every loop and macro."""
        tree = self.parse(source)
        _CheckedConcat().visit(tree)
        bodies = [node.body for node in tree.find_all(nodes.For)]
        bodies += [node.body for node in tree.find_all(nodes.Macro)]
        bodies += [node.body for node in tree.find_all(nodes.CallBlock)]
        for body in bodies:
            line = body[0].lineno if body else 1
            body.insert(0, nodes.ExprStmt(_environment_call("tick", [], line), lineno=line))
        return tree

    def tick(self) -> None:
        """One more loop turn or macro call."""
        self.run.steps += 1
        if self.run.steps > MAX_STEPS:
            msg = f"more than {MAX_STEPS:,} loop turns"
            raise SecurityError(msg)

    def concat_checked(self, *parts: Any) -> str:
        """The ``~`` operator."""
        text = "".join(map(str, parts))
        _check_length(len(text))
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The intercepted operators, refused where the result would be huge."""
        if isinstance(left, int) and isinstance(right, int):
            factor = abs(right) if operator == "**" else 1
            if max(left.bit_length() * factor, right.bit_length()) > _MAX_BITS:
                msg = f"a number beyond {_MAX_BITS} bits"
                raise SecurityError(msg)
        elif operator == "+":
            if hasattr(left, "__len__") and hasattr(right, "__len__"):
                _check_length(len(left) + len(right))
        elif operator == "*":
            sized, count = (left, right) if hasattr(left, "__len__") else (right, left)
            if hasattr(sized, "__len__") and isinstance(count, int):
                _check_length(len(sized) * count)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call from the template, refused with arguments that ask for a huge result."""
        _check_call(getattr(obj, "__name__", ""), (getattr(obj, "__self__", None), *args, *kwargs.values()))
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` inside the sandbox, refused where a width is huge."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def _strftime_now(self, form: str) -> str:
        _check_format(form)
        date = datetime.now().astimezone().strftime(form)
        self.run.dates += (date,)
        return date


class _CheckedConcat(NodeTransformer):
    """Makes ``~`` a call of `concat_checked`."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802 - the visitor's naming
        self.generic_visit(node)
        return _environment_call("concat_checked", node.nodes, node.lineno)


def _environment_call(name: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name, lineno=line), args, [], None, None, lineno=line)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # keeps Jinja's mark of what to pass first
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_call(name, (*args, *kwargs.values()))
        result = function(*args, **kwargs)
        if isinstance(result, str):
            _check_length(len(result))
        return result

    return bounded


def _check_call(name: str, values: Sequence[Any]) -> None:
    """Refuses a call of the filter or method `name` that asks for a huge result."""
    if name in _PADDING:
        for value in values:
            if type(value) is int and abs(value) > _MAX_NUMBER:
                msg = f"a width or count beyond {_MAX_NUMBER:,}"
                raise SecurityError(msg)
    elif name in _MULTIPLYING:
        lengths = sorted(len(value) for value in values if hasattr(value, "__len__"))
        if len(lengths) > 1:
            _check_length(lengths[-1] * lengths[-2])
    elif name == "format":
        for value in values:
            if isinstance(value, str):
                _check_format(value)
                break  # the format comes first


def _check_format(form: str) -> None:
    if _WIDE_FORMAT.search(form):
        msg = "a format with such a width"
        raise SecurityError(msg)


def _check_length(length: int) -> None:
    if length > MAX_OUTPUT:
        msg = f"a value of {length:,} characters or items"
        raise SecurityError(msg)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    _check_call("indent", (indent,))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> NoReturn:
    raise RefusalError(str(message))
