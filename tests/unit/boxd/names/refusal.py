"""Running a parser over any text."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from boxd.errors import BadName

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def value_or_refusal(parse: Callable[[], T]) -> T | None:
    """What `parse` returns, or None when it refuses, which it does with one printable line."""
    try:
        return parse()
    except BadName as error:
        text = str(error)
    assert text.isprintable()
    assert len(text) < 400
    return None
