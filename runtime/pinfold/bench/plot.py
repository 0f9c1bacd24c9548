"""The draft bench as a picture: an SVG file of bars, legible on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from pinfold.bench.draft import DraftBench

__all__ = ["svg"]

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _BAR = 760, 190, 70, 64, 40, 22
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.back { fill: #ffffff }
.title { font-size: 15px; font-weight: 600 }
.line { stroke: #1f2328; opacity: .6 }
.ceiling { stroke: #bc4c00; stroke-dasharray: 5 4 }
.bar { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .back { fill: #0d1117 }
  .line { stroke: #e6edf3 }
  .bar { fill: #58a6ff }
  .ceiling { stroke: #f0883e }
}
"""


def svg(bench: DraftBench) -> str:
    """One bar for each workload: times faster than plain decoding; lines at 1 and at the ceiling."""
    most = max([1.2, bench.ceiling, *(row.ratio for row in bench.rows)])
    most = math.ceil(most * 2) / 2
    height = _TOP + _ROW * len(bench.rows) + 40
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="back" width="{_WIDTH}" height="{height}"/>',
            f'<text class="title" x="16" y="26">{escape(bench.model)}: draft-verify against plain decoding</text>',
            *_bars(bench, most),
            *_line("line", 1.0, most, height, "plain"),
            *(_line("ceiling", bench.ceiling, most, height, f"ceiling {bench.ceiling:.1f}") if bench.ceiling else ()),
            "</svg>",
            "",
        )
    )


def _x(ratio: float, most: float) -> float:
    return round(_LEFT + ratio / most * (_WIDTH - _LEFT - _RIGHT), 1)


def _bars(bench: DraftBench, most: float) -> Iterator[str]:
    for number, row in enumerate(bench.rows):
        y = _TOP + _ROW * number
        end = _x(row.ratio, most)
        yield f'<text x="{_LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(row.workload)}</text>'
        yield f'<rect class="bar" x="{_LEFT}" y="{y}" width="{round(end - _LEFT, 1)}" height="{_BAR}"/>'
        yield f'<text x="{end + 6}" y="{y + 15}">{row.ratio:.2f}</text>'


def _line(kind: str, ratio: float, most: float, height: int, label: str) -> Iterator[str]:
    x = _x(ratio, most)
    yield f'<line class="{kind}" x1="{x}" x2="{x}" y1="{_TOP - 12}" y2="{height - 28}"/>'
    yield f'<text x="{x}" y="{height - 12}" text-anchor="middle">{escape(label)}</text>'
