"""Expiry of credentials, which ends the connections of a credential.

Expiry times are wall-clock times, and the wall clock can be set. So the timer reads the clock at
least every LOOK_EVERY_S seconds.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from boxd.clock import Clock
    from boxd.principal import Principal

LOOK_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Expiry:
    """The time at which a credential expires, and the message for its connections."""

    at: datetime
    text: str

    @classmethod
    def of(cls, p: Principal) -> Expiry | None:
        """Return when the credential of a principal expires; None: never."""
        names = {"api_key": "API key", "share": "share link", "cookie": "session of a browser"}
        name = names.get(p.via, "credential")
        return None if p.expires is None else cls(p.expires, f"this {name} has expired")


@contextmanager
def ending(expiry: Expiry | None, clock: Clock, end: Callable[[str], None]) -> Iterator[None]:
    """Call `end` with the message at the expiry time, if the context is still open then."""
    if expiry is None:
        yield
        return
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        remaining = (expiry.at - clock.now()).total_seconds()
        if remaining > 0:
            timer = loop.call_later(min(remaining, LOOK_EVERY_S), look)
        else:
            end(expiry.text)

    look()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
