"""Draws a bar chart of ratios as SVG, without a library."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, LEFT, RIGHT, ROW, TOP = 900, 190, 70, 24, 60
BELOW, ABOVE, MARK, INK = "#c0504d", "#3b7d4f", "#222222", "#444444"
SMALLEST = 0.01
"""Smaller ratios are drawn like this one. The number next to the bar is exact."""


def chart(title: str, ratios: Mapping[str, float | None], goals: Mapping[str, float]) -> str:
    """Draw a bar per work, starting at ratio 1 on a logarithmic axis, with a mark at its goal."""
    known = [max(SMALLEST, value) for value in (*ratios.values(), *goals.values()) if value]
    axis = _Axis([*known, 1.0])
    height = TOP + ROW * len(ratios) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="24" font-size="15">{escape(title)}</text>',
        '<text x="10" y="44">bars: ratio, logarithmic; mark: goal (green: reached)</text>',
    ]
    parts += _grid(axis, height)
    for number, (name, ratio) in enumerate(ratios.items()):
        parts += _bar(axis, TOP + ROW * number, name, ratio, goals.get(name))
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


def _bar(axis: _Axis, y: float, name: str, ratio: float | None, goal: float | None) -> list[str]:
    parts = [f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(name)}</text>']
    if ratio is None:
        parts.append(f'<text x="{axis.x(1) + 6:.1f}" y="{y + 15}">no ratio</text>')
    else:
        start, end = sorted((axis.x(1), axis.x(ratio)))
        color = ABOVE if goal is None or ratio >= goal else BELOW
        parts.append(
            f'<rect x="{start:.1f}" y="{y + 4}" width="{max(1.0, end - start):.1f}" '
            f'height="{ROW - 9}" fill="{color}"/>'
        )
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y + 15}">{ratio:.2f}</text>')
    if goal is not None:
        x = axis.x(goal)
        parts.append(
            f'<line x1="{x:.1f}" y1="{y + 1}" x2="{x:.1f}" y2="{y + ROW - 2}" '
            f'stroke="{MARK}" stroke-width="2.5"/>'
        )
    return parts
