"""Loops that run as long as the service does: one that ends by a bug is told of at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)


def watched(loop: asyncio.Task[None]) -> asyncio.Task[None]:
    """Logs an error when the loop raises; returns it."""
    loop.add_done_callback(_ended)
    return loop


def _ended(loop: asyncio.Task[None]) -> None:
    error = None if loop.cancelled() else loop.exception()
    if error is not None:
        _log.error("%s: ended by a bug; restart the service", loop.get_name(), exc_info=error)
