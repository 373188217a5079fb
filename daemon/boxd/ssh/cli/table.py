"""Tables and key-value lists for people. Values cannot move the cursor. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.names.words import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

EMPTY_CELL = "-"
_STEP = 1024
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_TIME_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the rows below their columns, aligned; None is shown as `-`."""
    lines = [list(columns), *([cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in lines
    )


def key_value_lines(pairs: Sequence[tuple[str, object]]) -> str:
    """Return `key: value` lines with aligned values."""
    width = max(len(key) for key, _ in pairs) + 1
    return "".join(f"{key + ':':<{width}} {cell(value)}\n" for key, value in pairs)


def cell(value: object) -> str:
    """Return one value as printable text."""
    if value is None or value == "":
        return EMPTY_CELL
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return escaped(str(value))


def format_span(seconds: float) -> str:
    """Return a time span in its two largest units: `2h5m`, `3d`, `0s`."""
    rest = max(0, int(seconds))
    parts: list[str] = []
    for unit, unit_seconds in _TIME_UNITS:
        count, rest = divmod(rest, unit_seconds)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"


def format_size(count: int) -> str:
    """Format a number of bytes in the largest unit with a value of at least one: `1.5 MiB`."""
    value = float(count)
    for unit in _BYTE_UNITS[:-1]:
        if value < _STEP:
            return f"{count} {unit}" if unit == _BYTE_UNITS[0] else f"{value:.1f} {unit}"
        value /= _STEP
    return f"{value:.1f} {_BYTE_UNITS[-1]}"


def format_time(when: datetime | None) -> str | None:
    """Return a UTC time to the second, in ISO 8601 form."""
    return None if when is None else when.strftime("%Y-%m-%dT%H:%M:%SZ")


def time_until(when: datetime, now: datetime) -> str:
    """Return the time until `when`: `in 2h5m`, or `now`."""
    seconds = (when - now).total_seconds()
    return f"in {format_span(seconds)}" if seconds >= 1 else "now"
