"""Durations as users write them: `90s`, `30m`, `2h`, `1h30m`, `1d`."""

from __future__ import annotations

import re
from datetime import timedelta

from boxd.errors import BadName
from boxd.names.words import fold, shown

MAX_DURATION = timedelta(days=3650)
"""Ten years; longer ones are refused, so that sums with a date never overflow."""

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_FORM = re.compile("".join(f"(?:([0-9]{{1,9}}){unit})?" for unit, _ in _UNITS))
_EXAMPLES = "for example 90s, 30m, 2h, 1h30m or 1d"


def parse_duration(text: str, what: str = "duration") -> timedelta:
    """A positive time of whole seconds, at most ten years; `what` names it in errors.

    Raises BadName.
    """
    match = _FORM.fullmatch(fold(text))
    if match is None or not text:
        raise BadName(f"{what} {shown(text)} is not valid: {_EXAMPLES}")
    seconds = sum(
        int(count) * size
        for count, (_, size) in zip(match.groups(), _UNITS, strict=True)
        if count is not None
    )
    if seconds == 0:
        raise BadName(f"{what} {shown(text)} must be positive: {_EXAMPLES}")
    if seconds > MAX_DURATION.total_seconds():
        raise BadName(f"{what} {shown(text)} is longer than 10 years: {_EXAMPLES}")
    return timedelta(seconds=seconds)


def format_duration(value: timedelta) -> str:
    """The shortest text that `parse_duration` reads back. Whole positive seconds only."""
    rest = int(value.total_seconds())
    if rest <= 0 or timedelta(seconds=rest) != value:
        raise ValueError(f"not a positive number of whole seconds: {value!r}")
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
