"""Draws a bar chart of ratios as SVG, without a library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, LEFT, RIGHT, ROW, BAR, TOP = 900, 190, 110, 32, 10, 78
MARK, INK = "#222222", "#444444"
SMALLEST = 0.01
"""Smaller ratios are drawn like this one. The number next to the bar is exact."""


@dataclass(frozen=True, slots=True)
class Style:
    """The look of the bars of one ratio."""

    legend: str
    met: str
    short: str


PEER = Style("upper bar: ours / JuiceFS", "#3b7d4f", "#c0504d")
LIMIT = Style("lower bar: ours / passthrough", "#8fc79f", "#e6a3a1")
TITLE = "Drive: ours / JuiceFS, and ours / passthrough, one client"


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio and its goal. None: not measured, or no goal."""

    ratio: float | None
    goal: float | None
    style: Style


def draw(works: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw both ratios of each work of the drive's results."""
    bars = {
        name: [
            Bar(figures.get("ratio"), figures.get("goal"), PEER),
            Bar(figures.get("limit_ratio"), figures.get("limit_goal"), LIMIT),
        ]
        for name, figures in works.items()
    }
    return chart(TITLE, bars)


def chart(title: str, rows: Mapping[str, Sequence[Bar]]) -> str:
    """Draw the bars of each work, starting at ratio 1 on a logarithmic axis, with their goals."""
    bars = [bar for row in rows.values() for bar in row]
    known = [value for bar in bars for value in (bar.ratio, bar.goal) if value]
    axis = _Axis([*(max(SMALLEST, value) for value in known), 1.0])
    height = TOP + ROW * len(rows) + 30
    legends = "; ".join(dict.fromkeys(bar.style.legend for bar in bars))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="10" y="44">{escape(legends)}</text>',
        '<text x="10" y="62">logarithmic; mark: goal; green: met, red: short</text>',
    ]
    parts += _grid(axis, height)
    for number, (name, row) in enumerate(rows.items()):
        parts += _row(axis, TOP + ROW * number, name, row)
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """Converts ratios to horizontal positions."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low = math.floor(2 * math.log10(min(values))) / 2
        self.high = max(self.low + 0.5, math.ceil(2 * math.log10(max(values))) / 2)

    def x(self, ratio: float) -> float:
        share = (math.log10(max(SMALLEST, ratio)) - self.low) / (self.high - self.low)
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, share))


def _grid(axis: _Axis, height: int) -> list[str]:
    parts = []
    for power in range(math.ceil(axis.low), math.floor(axis.high) + 1):
        x = axis.x(10.0**power)
        width = 1.5 if power == 0 else 0.5
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 22}" '
            f'stroke="#999999" stroke-width="{width}"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{10.0**power:g}</text>'
        )
    return parts


def _row(axis: _Axis, y: float, name: str, bars: Sequence[Bar]) -> list[str]:
    figures = " / ".join("-" if bar.ratio is None else f"{bar.ratio:.2f}" for bar in bars)
    middle = y + ROW / 2 + 3
    parts = [
        f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end">{escape(name)}</text>',
        f'<text x="{WIDTH - RIGHT + 8}" y="{middle}">{figures}</text>',
    ]
    for number, bar in enumerate(bars):
        parts += _bar(axis, y + 4 + number * (BAR + 2), bar)
    return parts


def _bar(axis: _Axis, y: float, bar: Bar) -> list[str]:
    parts = []
    if bar.ratio is not None:
        start, end = sorted((axis.x(1), axis.x(bar.ratio)))
        color = bar.style.met if bar.goal is None or bar.ratio >= bar.goal else bar.style.short
        parts.append(
            f'<rect x="{start:.1f}" y="{y}" width="{max(1.0, end - start):.1f}" '
            f'height="{BAR}" fill="{color}"/>'
        )
    if bar.goal is not None:
        x = axis.x(bar.goal)
        parts.append(
            f'<line x1="{x:.1f}" y1="{y - 1}" x2="{x:.1f}" y2="{y + BAR + 1}" '
            f'stroke="{MARK}" stroke-width="2.5"/>'
        )
    return parts
