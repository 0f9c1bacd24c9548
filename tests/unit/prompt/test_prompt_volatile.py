"""What changes from run to run is found; what only looks like it is left alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.prompt.volatile import find_volatile

TMP = "/tmp/"  # noqa: S108 - a name to be found, no file

CHANGES = [
    ("date", "Today is 2026-12-01.", "2026-12-01"),
    ("date", "Current date and time: 2026-12-01T09:14:22.123+01:00", "2026-12-01T09:14:22.123+01:00"),
    ("date", "Started 2026-12-01 09:14:22 UTC, by cron.", "2026-12-01 09:14:22 UTC"),
    ("date", "The date: 2026/12/01", "2026/12/01"),
    ("date", "Date: 12/01/2026", "12/01/2026"),
    ("date", "Heute: 1.12.2026", "1.12.2026"),
    ("date", "It is December 1, 2026.", "December 1, 2026"),
    ("date", "It is Tuesday, 1st of December 2026 at 10:32 AM.", "Tuesday, 1st of December 2026 at 10:32 AM"),
    ("date", "Tue Dec  1 12:18:44 UTC 2026", "Tue Dec  1 12:18:44 UTC 2026"),
    ("date", "Today is Tuesday.", "Tuesday"),
    ("date", "Today is Tuesday, December 1", "Tuesday, December 1"),
    ("date", "The current month is December 2026.", "December 2026"),
    ("date", '{"current_date": "x", "today": "2026-12-01"}', "2026-12-01"),
    ("date", "Knowledge cutoff: 2023-10-01. Today is 2026-12-01.", "2026-12-01"),
    ("date", "The current date in ISO format: 2026-12-01", "2026-12-01"),
    ("date", "Today's date, formatted like this: 2026-12-01", "2026-12-01"),
    ("time", "The time is 10:32.", "10:32"),
    ("time", "City: Bergen\nTime: 10:32", "10:32"),
    ("time", "You are kind.\n- Time: 10:32 PM\n", "10:32 PM"),
    ("time", "Current time: 9:05 PM", "9:05 PM"),
    ("time", "Log opened at 10:32:07.", "10:32:07"),
    ("time", "timestamp=1796127524", "1796127524"),
    ("time", "generated 1796127524123", "1796127524123"),
    ("time", "t0 1796127524.55", "1796127524.55"),
    ("id", "You serve 6fa459ea-ee8a-4ca4-894e-db77e160355e.", "6fa459ea-ee8a-4ca4-894e-db77e160355e"),
    ("id", "Ticket 01JDZ5K3M8Q2X7W9V4T6R1N0PB is open.", "01JDZ5K3M8Q2X7W9V4T6R1N0PB"),
    ("id", "Trace 9f86d081884c7d659a2feaa0c55ad015.", "9f86d081884c7d659a2feaa0c55ad015"),
    ("id", "Nonce: q7Zt3Kx9LmP2vR8sW4bN6y", "q7Zt3Kx9LmP2vR8sW4bN6y"),
    ("id", "Token q7Z+3Kx9/mP2vR8sW4bN6y8A==", "q7Z+3Kx9/mP2vR8sW4bN6y8A=="),
    ("id", "session_id: ab12cd", "ab12cd"),
    ("id", "Your run id is 000417-b.", "000417-b"),
    ("address", "Use <shop.Cart object at 0x7f3c2a9d1e50> for it.", "0x7f3c2a9d1e50"),
    ("address", "Calls `<function buy at 0x7f3c2a9d1e50>`.", "0x7f3c2a9d1e50"),
    ("path", "Work in /tmp/tmpab12.", f"{TMP}tmpab12"),
    ("path", "Work in `/tmp/tmpx_kqzwvb/repo`.", f"{TMP}tmpx_kqzwvb"),
    ("path", "Logs: /tmp/agent-9f3k2a", f"{TMP}agent-9f3k2a"),
    ("path", "cwd /private/var/folders/ab/c9d/T/tmpq1w2e3r4", "/private/var/folders/ab/c9d/T/tmpq1w2e3r4"),
    ("path", r"In C:\Users\me\AppData\Local\Temp\tmpq1w2e3r4", r"C:\Users\me\AppData\Local\Temp\tmpq1w2e3r4"),
    ("process", "The server (pid 48213) runs.", "48213"),
    ("process", "Listens on http://localhost:49312/v1", "49312"),
    ("process", "port: 49312", "49312"),
]

STAYS = [
    "# Changes\n## 2.11.5 (2025-05-22)\n## [v1.0] - 2017-02-10\nContributions before December 1, 2017 are theirs.",
    "Delivery time: 10:30, or by appointment.",
    "See https://example.org/assets/4caeb77e-48c0-4cf7-b14d-c53ded855ffd?u=9f86d081884c7d659a2feaa0c55ad015.",
    "The digits are 0123456789abcdef.",
    "Use Python 3.11.4 and numpy 2.1.0; 1.12.20 is too old.",
    "Knowledge cutoff: 2023-10-01.",
    "Knowledge cutoff: October 2023",
    "The header is anthropic-version: 2023-06-01.",
    "Use claude-sonnet-2024-05-14 or gpt-4o-2024-08-06.",
    "Write dates as ISO 8601, e.g. 2024-01-31.",
    "A date in the format 31/12/2024.",
    'The day, such as "2024-01-31"; or "2024-02-29".',
    "The act was signed on 4 July 1776.",
    "The library, founded March 3, 1894, is open from 9:00 to 17:00.",
    "Copyright © 2019-2026 the authors, since 2019-04-01.",
    "Today is a good day to be careful.",
    "May I ask now? It is now or never.",
    "Aspect ratio 16:09, a timeout of 01:30:00, odds of 3:1.",
    "MAC 00:1a:2b:3c:4d:5e, IPv6 fe80::1:2:3:4.",
    "It costs $1,796.12 or 1796127524 lire; call 5551234567.",
    "At most 1500000000 rows, 4294967296 bytes, 0xDEADBEEF as the mask.",
    "Colour #ff00aa11bb22cc33, and 1234567890123456 alone.",
    "The schema's id is 123e4567-e89b-12d3-a456-426614174000, or 00000000-0000-0000-0000-000000000000.",
    "The commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b fixed it; sha256: 9f86d081884c7d659a2feaa0c55ad015.",
    "```\n2026-12-01 6fa459ea-ee8a-4ca4-894e-db77e160355e /tmp/tmpab12\n<A object at 0x7f3c2a9d1e50>\n```",
    "~~~python\nstarted = '2026-12-01T10:11:12'\n~~~",
    "Call `resolve('9f86d081884c7d659a2feaa0c55ad015')` on `2026-12-01`.",
    "Call get_HTTP2_server_response_for_user_id, or ConfigurationManagerFactory2Impl.",
    "Paths: /tmp/output, /tmp/report-2024, /tmp/backup_data1, src/2024/05/01/post.md.",
    "Run `make test`, PID 1 is init; it listens on port 8080 and localhost:5432.",
    "The run id names the run, the session id the session.",
    "internationalization-and-localization-of-everything",
    "Supercalifragilisticexpialidocious deadbeefdeadbeef cafebabecafebabe",
    "Section 4.3.2, figure 12, 10-12 items, 50/50, 24/7, 3/4 of 1/2/3.",
]


@pytest.mark.parametrize(("kind", "text", "it"), CHANGES)
def test_found(kind: str, text: str, it: str) -> None:
    (found,) = find_volatile(text)
    assert (found.kind, text[found.start : found.end]) == (kind, it)


@pytest.mark.parametrize("text", STAYS)
def test_left_alone(text: str) -> None:
    assert [text[found.start : found.end] for found in find_volatile(text)] == []


def test_several_in_order() -> None:
    text = "Today is 2026-12-01, 10:32:07. Work in /tmp/tmpab12 (pid 48213)."
    assert [found.kind for found in find_volatile(text)] == ["date", "time", "path", "process"]


@given(st.text(max_size=200), st.sampled_from(CHANGES))
def test_spans_are_in_the_text_and_never_overlap(text: str, known: tuple[str, str, str]) -> None:
    whole = f"{text}\n{known[1]}\n{text}"
    found = find_volatile(whole)
    assert all(hit.start < hit.end <= len(whole) for hit in found)
    assert all(one.end <= other.start for one, other in pairwise(found))
