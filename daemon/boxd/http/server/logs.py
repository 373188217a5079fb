"""A filter for uvicorn's logger: no query strings, and no warnings about errors of clients."""

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
    """Redacts query strings, which can contain a key, and lowers client errors to DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change a record; return False if its new level is disabled. Logging calls it."""
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
    """Install the filter on uvicorn's logger, once, and show its records from WARNING on.

    uvicorn's access log is disabled permanently: it contains query strings, and `access_log=False`
    disables it only while its logger has no handler.
    """
    logging.getLogger(ACCESS_LOGGER).disabled = True
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(known, UvicornFilter) for known in logger.filters):
        logger.addFilter(UvicornFilter())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
