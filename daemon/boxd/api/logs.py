"""What uvicorn's own logger may say: never a query string, and no alarm for what a client did."""

from __future__ import annotations

import asyncio
import logging
import re

LOGGER = "uvicorn.error"
ACCESS_LOGGER = "uvicorn.access"
_QUERY = re.compile(r"\?[^\s\"']*")
_CLIENT_CAUSED = (
    "Invalid HTTP request received",
    "Unsupported upgrade request",
    "ASGI callable returned without completing response",
    "ASGI callable returned without starting response",
    "without completing handshake",
    "No supported WebSocket library",
    "timeout graceful shutdown exceeded",
)


class UvicornFilter(logging.Filter):
    """Redacts query strings (they may hold a key) and turns clients' faults into DEBUG lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by logging for each record; keeps them all, changed."""
        text = record.getMessage()
        record.msg, record.args = _QUERY.sub("?***", text), None
        cancelled = record.exc_info is not None and isinstance(
            record.exc_info[1], asyncio.CancelledError
        )
        if cancelled or any(known in text for known in _CLIENT_CAUSED):
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            record.exc_info = None
        return record.levelno >= logging.getLogger(LOGGER).getEffectiveLevel()


def quiet_uvicorn() -> None:
    """Puts the filter on uvicorn's logger, once. Its lifecycle lines are shown from WARNING on.

    Its access log is off for good: it holds query strings, and `access_log=False` turns it off only
    for as long as nobody listens to that logger.
    """
    logging.getLogger(ACCESS_LOGGER).disabled = True
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(known, UvicornFilter) for known in logger.filters):
        logger.addFilter(UvicornFilter())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
