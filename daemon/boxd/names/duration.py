"""Durations as users write them: `90s`, `30m`, `2h`, `1h30m`, `1d`."""

from __future__ import annotations

import re
from datetime import timedelta

from boxd.errors import BadName, BadRequest
from boxd.names.words import fold, shown

MAX_DURATION = timedelta(days=3650)
"""Ten years. The parser rejects longer durations, so that sums with a date never overflow."""

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_FORM = re.compile("".join(f"(?:([0-9]{{1,9}}){unit})?" for unit, _ in _UNITS))
_EXAMPLES = "for example 90s, 30m, 2h, 1h30m or 1d"


def parse_duration(text: str, what: str = "duration", *, clamps: bool = False) -> timedelta:
    """Return a positive duration of whole seconds, at most ten years.

    `what` names the duration in errors. With `clamps`, a longer duration becomes ten years. Raises
    BadName.
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
    if clamps:
        seconds = min(seconds, int(MAX_DURATION.total_seconds()))
    if seconds > MAX_DURATION.total_seconds():
        raise BadName(f"{what} {shown(text)} is longer than 10 years: {_EXAMPLES}")
    return timedelta(seconds=seconds)


def parse_seconds(text: str, what: str) -> int:
    """Return the whole seconds of a duration, or 0 for `0`. Raises BadRequest."""
    if text == "0":
        return 0
    try:
        return int(parse_duration(text, what).total_seconds())
    except BadName as error:
        raise BadRequest(f"{error}, or 0") from None


def format_duration(value: timedelta) -> str:
    """Return the shortest text that `parse_duration` reads back.

    Raises ValueError unless the value is a positive number of whole seconds.
    """
    rest = int(value.total_seconds())
    if rest <= 0 or timedelta(seconds=rest) != value:
        raise ValueError(f"not a positive number of whole seconds: {value!r}")
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
