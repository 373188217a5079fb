"""A limit on the time of a whole exchange, for code that only knows limits of single reads."""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT: ContextVar[tuple[float, float] | None] = ContextVar("boxd_client_deadline", default=None)
"""The end of the exchange on the monotonic clock, and the seconds that it may take."""


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Limit the network calls of this context to `seconds` in all; None: no new limit."""
    if seconds is None:
        yield
        return
    token = _LIMIT.set((time.monotonic() + seconds, seconds))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def extend() -> None:
    """Let the limit of this context begin again: the exchange has made progress."""
    limit = _LIMIT.get()
    if limit is not None:
        _LIMIT.set((time.monotonic() + limit[1], limit[1]))


def remaining(timeout: float | None, error: type[Exception]) -> float | None:
    """Return a timeout that is not longer than the rest of the deadline.

    Raises `error` if the deadline has passed.
    """
    limit = _LIMIT.get()
    if limit is None:
        return timeout
    rest = limit[0] - time.monotonic()
    if rest <= 0:
        raise error
    return rest if timeout is None else min(timeout, rest)
