"""A report as a picture: an SVG file of sizes against losses, legible on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from itertools import pairwise

from pinfold.kv.codec import EXACT
from pinfold.quality.report import QualityReport, Row

__all__ = ["svg"]

_WIDTH, _HEIGHT = 760, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 58, 56
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.back { fill: #ffffff }
.title { font-size: 15px; font-weight: 600 }
.rung { font-size: 10px; opacity: .75 }
.grid { stroke: #1f2328; opacity: .15 }
.axis { stroke: #1f2328; opacity: .6 }
.floor { stroke: #1f2328; stroke-dasharray: 5 4; opacity: .7 }
.ours { stroke: #0969da; stroke-width: 2 }
.ring { fill: none; stroke: #0969da; stroke-width: 2 }
.dot { fill: #0969da }
.preset { fill: #0969da; font-weight: 600 }
.theirs { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .back { fill: #0d1117 }
  .grid, .axis, .floor { stroke: #e6edf3 }
  .ours, .ring { stroke: #58a6ff }
  .dot, .preset { fill: #58a6ff }
  .theirs { fill: #f0883e }
}
"""


class _Frame:
    """From times smaller and nats to places in the picture."""

    def __init__(self, report: QualityReport) -> None:
        rows = [report.floor, *report.reference.values(), *report.presets.values(), *report.ladder.values()]
        klds = [row.kld_mean for row in rows if row.kld_mean > 0] or [1e-4, 1e-2]
        self.most = math.ceil(max(row.times_smaller for row in rows) * 1.08)
        self.low = math.log10(min(klds) / 1.6)
        self.high = math.log10(max(klds) * 1.6)

    def x(self, times: float) -> float:
        part = (times - 1) / max(self.most - 1, 1)
        return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, kld: float) -> float:
        """No loss at all has no place on a logarithmic axis: it lies on the bottom line."""
        part = (math.log10(kld) - self.low) / (self.high - self.low) if kld > 0 else 0.0
        return round(_HEIGHT - _BOTTOM - min(max(part, 0.0), 1.0) * (_HEIGHT - _TOP - _BOTTOM), 1)

    def at(self, row: Row) -> tuple[float, float]:
        return self.x(row.times_smaller), self.y(row.kld_mean)

    def ticks(self) -> Iterator[float]:
        """1, 2 and 5 of each decade that is in the picture."""
        for decade in range(math.floor(self.low), math.ceil(self.high)):
            yield from (m * 10.0**decade for m in (1, 2, 5) if self.low <= math.log10(m) + decade <= self.high)


def svg(report: QualityReport) -> str:
    """The picture as the text of an SVG file."""
    frame = _Frame(report)
    title = f"{escape(report.model)}: what the fold saves, and what it costs"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}"/>',
        _text(_LEFT, 24, title, "title"),
        _text(_LEFT, 42, f"{report.evaluated_tokens:,} tokens after prefixes of {report.prefix_tokens:,}", "rung"),
        *_axes(frame),
        *_floor(frame, report.floor),
        *_ladder(frame, report),
        *_references(frame, report),
        *_presets(frame, report),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(frame: _Frame) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for times in range(1, frame.most + 1):
        x = frame.x(times)
        yield _line(x, _TOP, x, bottom, "grid")
        yield _text(x, bottom + 18, f"{times}", anchor="middle")
    for kld in frame.ticks():
        y = frame.y(kld)
        yield _line(_LEFT, y, right, y, "grid")
        yield _text(_LEFT - 8, y + 4, f"{kld:g}" if kld >= 1e-4 else f"{kld:.0e}", anchor="end")
    yield _line(_LEFT, bottom, right, bottom, "axis")
    yield _line(_LEFT, _TOP, _LEFT, bottom, "axis")
    yield _text((_LEFT + right) / 2, _HEIGHT - 14, "times smaller than the f16 cache", anchor="middle")
    middle = (_TOP + bottom) / 2
    turned = f'transform="rotate(-90 18 {middle})"'
    yield f'<text x="18" y="{middle}" text-anchor="middle" {turned}>mean KL divergence, nats (log)</text>'


def _floor(frame: _Frame, row: Row) -> Iterator[str]:
    if row.kld_mean > 0:
        y = frame.y(row.kld_mean)
        yield _line(_LEFT, y, _WIDTH - _RIGHT, y, "floor")
        yield _text(_WIDTH - _RIGHT, y + 14, "floor: rounding in the engine", anchor="end")


def _ladder(frame: _Frame, report: QualityReport) -> Iterator[str]:
    places = sorted((*frame.at(row), name) for name, row in report.ladder.items())
    for (x1, y1, _), (x2, y2, _) in pairwise(places):
        yield _line(x1, y1, x2, y2, "ours")
    for number, (x, y, name) in enumerate(places):
        yield f'<circle class="dot" cx="{x}" cy="{y}" r="3.5"><title>{escape(name)}</title></circle>'
        presets = [preset for preset, rung in report.rungs.items() if rung == name]
        label, kind = ", ".join((*presets, name)), "preset" if presets else "rung"
        below = number % 2 == 0  # neighbours would write over each other
        yield _text(x + (9 if below else -9), y + (15 if below else -9), label, kind, "start" if below else "end")


def _references(frame: _Frame, report: QualityReport) -> Iterator[str]:
    for name, row in report.reference.items():
        x, y = frame.at(row)
        yield f'<rect class="theirs" x="{x - 4.5}" y="{y - 4.5}" width="9" height="9"/>'
        yield _text(x - 9, y - 7, name, anchor="end")


def _presets(frame: _Frame, report: QualityReport) -> Iterator[str]:
    for x, y in sorted({frame.at(row) for row in report.presets.values()}):
        yield f'<circle class="ring" cx="{x}" cy="{y}" r="7"/>'
    x, y = frame.at(report.presets[EXACT])
    lossless = [preset for preset, rung in report.rungs.items() if rung == EXACT]
    yield _text(x + 13, y - 6, f"{', '.join(lossless)}: no loss", "preset")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'
