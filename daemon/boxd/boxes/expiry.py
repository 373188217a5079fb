"""The moment in which a credential ends, and with it what it holds open.

The wall clock decides, and it may be set: it is looked at again every now and then.
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

LOOK_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Expiry:
    """`at` which moment; `text` is what is said then to who holds something open."""

    at: datetime
    text: str


@contextmanager
def ending(expiry: Expiry | None, clock: Clock, end: Callable[[str], None]) -> Iterator[None]:
    """Calls `end` with the text when the moment has come, if it comes while the context lasts."""
    if expiry is None:
        yield
        return
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        left = (expiry.at - clock.now()).total_seconds()
        if left > 0:
            timer = loop.call_later(min(left, LOOK_EVERY_S), look)
        else:
            end(expiry.text)

    look()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
