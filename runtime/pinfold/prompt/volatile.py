"""Finds text that is another one at every run: dates and clocks, ids, addresses, temporary paths.

Such text at the start of a prompt ends its reuse there. What only looks like it stays unmarked: version numbers,
prices, code, examples in a description, dates of what has happened. Fenced code is never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

__all__ = ["Volatile", "VolatileKind", "find_volatile"]

VolatileKind = Literal["date", "time", "id", "address", "path", "process"]

_LOOK_BACK = 64  # characters of the line that say what a date or number is

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|"
    r"Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_WEEKDAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_YEAR = r"(?:19|20)\d\d"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_NUMBER_OF_MONTH = r"(?:0?[1-9]|1[0-2])"
_CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d"
_SECONDS = r":(?!00\b)[0-5]\d(?:[.,]\d{1,9})?"  # on the minute it is a time of day that somebody wrote, or a duration
_ZONE = r"(?: ?(?:[AaPp](?:[Mm]|\.[Mm]\.)|UTC|GMT|Z|[+-]\d\d:?\d\d)(?!\w))*"
_ALONE = r"(?<![\w/.:\-])"
_ENDS = r"(?![\w/:\-]|\.\d)"

_FENCED = re.compile(r"^[ \t]*(```+|~~~+).*?(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`[^`\n]+`")

_CONTEXT = re.compile(
    r"\b(?P<now>today|now|currently|current|present|as of|generated (?:at|on)|started (?:at|on))\b"
    r"|\b(?P<example>e\.g\.|examples?|such as)"
    r"|\b(?P<form>like|formats?|formatted|iso ?8601)\b"
    r"|\b(?P<fixed>cut-?off|versions?|v|api|released?|since|published|founded|established|born|died|copyright|"
    r"effective|updated|enacted|signed|rfc|trained|training|began|history|commit|sha-?\d*|md5|hash|checksum|digest|"
    r"revision|rev|before|after|until)\b"
    r"|(?P<sign>©|\bv?\d+\.\d+(?:\.\w+)*[\])]*\W{1,5}$)",  # what follows a version is the day that it came out
    re.IGNORECASE,
)
_MARKS_NUMBER = re.compile(
    r"\b(?:time|timestamp|epoch|unix|ts|now|created|generated|started|seed|nonce)\b[^.\n]{0,16}$", re.IGNORECASE
)

_KNOWN_EXAMPLES = frozenset(
    {"123e4567-e89b-12d3-a456-426614174000", "550e8400-e29b-41d4-a716-446655440000", "0123456789abcdef"}
)
_INSIDE_URL = re.compile(r"://\S*$")
_EPHEMERAL_PORTS = range(32768, 65536)
_RECENT_SECONDS = range(1_500_000_000, 2_200_000_000)


@dataclass(frozen=True, slots=True)
class Volatile:
    """A stretch of a text, `start` to `end` in characters, that changes from run to run."""

    kind: VolatileKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Rule:
    """A form. Its group ``it``, or the whole match, is what changes, if `holds` says so of the text before and it."""

    kind: VolatileKind
    form: re.Pattern[str]
    holds: Callable[[str, str], bool]
    in_code: bool = False


def find_volatile(text: str) -> tuple[Volatile, ...]:
    """The stretches of `text` that change from run to run, in order; none overlaps another."""
    prose = _FENCED.sub(_blank, text)
    bare = _INLINE.sub(_blank, prose)
    found = [hit for rule in _RULES for hit in _hits(rule, prose if rule.in_code else bare)]
    found.sort(key=lambda hit: (hit.start, -hit.end))
    kept: list[Volatile] = []
    for hit in found:
        if not kept or hit.start >= kept[-1].end:
            kept.append(hit)
    return tuple(kept)


def _hits(rule: _Rule, text: str) -> Iterator[Volatile]:
    for match in rule.form.finditer(text):
        group = "it" if "it" in rule.form.groupindex else 0
        start, end = match.span(group)
        before = text[max(0, start - _LOOK_BACK) : start].rpartition("\n")[2]
        if rule.holds(before, match[group]):
            yield Volatile(rule.kind, start, end)


def _blank(match: re.Match[str]) -> str:
    return "\0" * len(match[0])


def _said_of_it(before: str) -> str | None:
    """What the nearest word before says: ``now``, ``example`` or ``fixed`` and the like; None where none says anything.

    "The current date in ISO format: ..." is no example, whatever "format" would say alone.
    """
    said = None
    for match in _CONTEXT.finditer(before):
        if not (match.lastgroup == "form" and said == "now"):
            said = match.lastgroup
    return said


def _always(_before: str, _it: str) -> bool:
    return True


def _is_the_date(before: str, _it: str) -> bool:
    said = _said_of_it(before)
    return said == "now" or (said is None and not before.endswith(('"', "'")))


def _is_the_time(before: str, _it: str) -> bool:
    return _said_of_it(before) in (None, "now")


def _is_epoch(before: str, it: str) -> bool:
    whole, _, fraction = it.partition(".")
    seconds = int(whole) // (1000 if len(whole) == 13 else 1)
    return seconds in _RECENT_SECONDS and bool(fraction or _MARKS_NUMBER.search(before))


def _may_be_new(before: str, it: str) -> bool:
    """Whether nothing says that an id is an example or stays: links, for one, lead to what is there already."""
    known = it.lower() in _KNOWN_EXAMPLES or _INSIDE_URL.search(before)
    return not known and _said_of_it(before) in (None, "now")


def _is_uuid(before: str, it: str) -> bool:
    return len(set(it)) > 6 and _may_be_new(before, it)


def _is_hex(before: str, it: str) -> bool:
    mixed = any(char.isdigit() for char in it) and any(char.isalpha() for char in it) and len(set(it)) > 6
    return mixed and it in (it.lower(), it.upper()) and _may_be_new(before, it)


def _is_ulid(before: str, it: str) -> bool:
    return len(set(it)) > 8 and any(char.isalpha() for char in it) and _may_be_new(before, it)


def _is_base64(before: str, it: str) -> bool:
    """Whether its letters and digits change kind as often as random ones do; words and names change seldom."""
    kinds = ["A" if char.isupper() else "a" if char.islower() else "0" for char in it.rstrip("=")]
    enough = all(kinds.count(kind) >= 2 for kind in "Aa0")
    changes = sum(one != other for one, other in pairwise(kinds))
    return enough and changes >= 0.45 * len(kinds) and _may_be_new(before, it)


def _is_named_id(before: str, it: str) -> bool:
    return any(char.isdigit() for char in it) and _may_be_new(before, it)


def _is_random_name(_before: str, it: str) -> bool:
    name = re.split(r"[/\\]", it)[-1]
    if re.fullmatch(r"tmp[A-Za-z0-9_]{8}|tmp(?=\w*\d)\w{4,}|pytest-\d+", name):
        return True
    random = re.split(r"[-_.]", name)[-1]
    return len(random) >= 6 and sum(one.isdigit() != other.isdigit() for one, other in pairwise(random)) >= 2


def _is_ephemeral(_before: str, it: str) -> bool:
    return int(it) in _EPHEMERAL_PORTS


def _rule(
    kind: VolatileKind, form: str, holds: Callable[[str, str], bool], flags: int = 0, *, in_code: bool = False
) -> _Rule:
    return _Rule(kind, re.compile(form, flags), holds, in_code)


_WHOLE_DATE = (
    rf"{_ALONE}(?:{_WEEKDAY},? )?(?:{_DAY}(?:st|nd|rd|th)?(?: of)? {_MONTH},? {_YEAR}"
    rf"|{_MONTH} {_DAY}(?:st|nd|rd|th)?,? {_YEAR})(?:,?(?: at)? {_CLOCK}(?::[0-5]\d)?{_ZONE})?{_ENDS}"
)
_NOW = (
    r"\b(?:today(?: is|'s date(?: is)?|\u2019s date(?: is)?)?|(?:current|local|present)(?: local)? "
    r"(?:date|time|day|month)(?: and time)?(?: is)?|(?:date|time) now(?: is)?|it is (?:now|currently)|time is(?: now)?"
    r"|(?:(?<=\n)|(?<=\n[-*] ))(?:date and )?time)[*_\"'\s:=>]{1,6}"
)

_RULES = (
    _rule(
        "date",
        rf"{_ALONE}{_YEAR}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?:[T ]{_CLOCK}(?::[0-5]\d(?:[.,]\d+)?)?"
        rf"{_ZONE})?{_ENDS}",
        _is_the_date,
    ),
    _rule("date", rf"{_ALONE}{_YEAR}/{_NUMBER_OF_MONTH}/{_DAY}{_ENDS}", _is_the_date),
    _rule("date", rf"{_ALONE}(?:{_NUMBER_OF_MONTH}/{_DAY}|{_DAY}/{_NUMBER_OF_MONTH})/{_YEAR}{_ENDS}", _is_the_date),
    _rule("date", rf"{_ALONE}{_DAY}\. ?{_NUMBER_OF_MONTH}\. ?{_YEAR}{_ENDS}", _is_the_date),
    _rule("date", _WHOLE_DATE, _is_the_date),
    _rule("date", rf"\b{_WEEKDAY},? {_MONTH} {{1,2}}{_DAY} {_CLOCK}:[0-5]\d(?: [A-Z]{{2,5}})? {_YEAR}\b", _always),
    _rule("date", rf"\b{_WEEKDAY}, (?:{_MONTH} {_DAY}|{_DAY} {_MONTH})\b(?!,? \d)", _is_the_date),
    _rule("date", rf"{_NOW}(?P<it>{_WEEKDAY}|{_MONTH} (?:{_DAY}|{_YEAR})|{_YEAR})\b", _always, re.IGNORECASE),
    _rule("time", rf"{_NOW}(?P<it>{_CLOCK}(?::[0-5]\d)?{_ZONE}){_ENDS}", _always, re.IGNORECASE),
    _rule("time", rf"{_ALONE}{_CLOCK}{_SECONDS}{_ZONE}{_ENDS}", _is_the_time),
    _rule("time", rf"{_ALONE}1\d{{9}}(?:\d{{3}})?(?:\.\d{{1,9}})?{_ENDS}", _is_epoch),
    _rule("id", r"(?<![\w-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![\w-])", _is_uuid, re.IGNORECASE),
    _rule("id", r"(?<![A-Za-z0-9])01[0-9A-HJKMNP-TV-Z]{24}(?![A-Za-z0-9])", _is_ulid),
    _rule("id", r"(?<![A-Za-z0-9/#])[0-9a-fA-F]{16,}(?![A-Za-z0-9/])", _is_hex),
    _rule("id", r"(?<![\w/.+-])(?:[A-Za-z0-9_-]{20,}|[A-Za-z0-9+/]{20,}(?==))={0,2}(?![\w/.+-]\w)", _is_base64),
    _rule(
        "id",
        r"\b(?:session|request|run|trace|thread|conversation|correlation|invocation|task|job)[ _-]?id"
        r"[*_\"'`\s:=]{1,6}(?:is )?(?P<it>[A-Za-z0-9][A-Za-z0-9_-]{5,})",
        _is_named_id,
        re.IGNORECASE,
    ),
    _rule("address", r"(?<=\bat )0x[0-9a-fA-F]{6,16}(?=>)", _always, in_code=True),
    _rule("path", r"(?<!\w)(?:/private)?(?:/var)?/tmp/(?:[\w.-]+/){0,3}?[\w.-]*\w", _is_random_name, in_code=True),
    _rule("path", r"(?<!\w)(?:/private)?/var/folders/\w\w/\w+/T(?:/[\w.-]*\w)?", _always, in_code=True),
    _rule("path", r"\b[A-Z]:\\(?:[\w .~-]+\\)+Te?mp\\[\w.-]*\w", _is_random_name, re.IGNORECASE, in_code=True),
    _rule("process", r"\b(?:pid|process id)\b[\s:=#]{1,3}(?:is )?(?P<it>\d{2,7})(?![\w.])", _always, re.IGNORECASE),
    _rule(
        "process",
        r"(?:\bport\b[\s:=]{1,3}(?:is )?|\blocalhost:|\b127\.0\.0\.1:|\[::1\]:)(?P<it>\d{5})(?![\w.]\w)",
        _is_ephemeral,
        re.IGNORECASE,
    ),
)
