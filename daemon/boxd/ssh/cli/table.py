"""Tables and key-value lists for people: aligned, headed, nothing in them moves a cursor. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.names.words import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

NOTHING = "-"
_STEP = 1024
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under their columns; None is shown as `-`."""
    lines = [list(columns), *([cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in lines
    )


def listing(pairs: Sequence[tuple[str, object]]) -> str:
    """`key: value` lines with aligned values."""
    width = max(len(key) for key, _ in pairs) + 1
    return "".join(f"{key + ':':<{width}} {cell(value)}\n" for key, value in pairs)


def cell(value: object) -> str:
    """One value as printable text."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return escaped(str(value))


def span(seconds: float) -> str:
    """A time span in its two largest units: `2h5m`, `3d`, `0s`."""
    rest = max(0, int(seconds))
    parts: list[str] = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"


def size(count: int) -> str:
    """Bytes in the largest unit that leaves a whole number before the point: `1.5 MiB`."""
    value = float(count)
    for unit in _SIZES[:-1]:
        if value < _STEP:
            return f"{count} {unit}" if unit == _SIZES[0] else f"{value:.1f} {unit}"
        value /= _STEP
    return f"{value:.1f} {_SIZES[-1]}"


def moment(when: datetime | None) -> str | None:
    """A point in time, UTC, to the second."""
    return None if when is None else when.strftime("%Y-%m-%dT%H:%M:%SZ")


def remaining(until: datetime, now: datetime) -> str:
    """How long till then: `in 2h5m`, or `now`."""
    left: timedelta = until - now
    return f"in {span(left.total_seconds())}" if left.total_seconds() >= 1 else "now"
