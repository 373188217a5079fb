"""Logging: one line a record on stderr, fields as `key=value`, secrets and control bytes masked.

Masking works on the finished line, tracebacks included, so that no caller has to remember it. It
is the last line of defence: secrets are `Secret` objects and are not logged in the first place.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import TextIO

MASK = "***"
_SECRETS = (
    re.compile(r"(svcs?_)[0-9A-Za-z]{16,}"),
    re.compile(r"(\w+://[^\s:/@]*:)[^\s@]+(?=@)"),
    re.compile(
        r"(?i)((?:password|secret_key|secret|access_key|token)['\"]?\s*[=:]\s*['\"]?)[^\s'\",&]+"
    ),
    re.compile(r"(?i)((?:authorization|x-api-key|set-cookie|cookie)['\"]?\s*[=:]\s*)[^\r\n]+"),
    re.compile(r"(?i)([?&](?:key|k%65y)=)[^\s&\"']+"),
    re.compile(r"(?i)(\bbearer\s+)\S+"),
    re.compile(r"(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)"),
)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_QUIET = ("asyncssh", "botocore", "aiobotocore", "asyncio")


def redact(text: str) -> str:
    """`text` with everything that looks like a secret masked."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: found.group(1) + MASK, text)
    return text


def escape(text: str) -> str:
    """`text` with control and direction-changing characters written as escapes; LF stays."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


class LineFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO boxd.boxes: box created box=0f3a... image=debian`."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """UTC with milliseconds."""
        del datefmt
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + (
            f".{int(record.msecs):03d}Z"
        )

    def format(self, record: logging.LogRecord) -> str:
        """Called by logging for each record."""
        fields = "".join(
            f" {name}={value}" for name, value in record.__dict__.items() if name not in _STANDARD
        )
        head = f"{self.formatTime(record)} {record.levelname} {record.name}: "
        # A line break inside a message must not look like another record.
        message = record.getMessage().replace("\n", "\\n")
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return escape(redact(head + message + fields + trace))


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at the time: a spinner puts itself in its place while it turns."""

    @property
    def stream(self) -> TextIO:
        """Where the next record goes."""
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        """Nothing else is written to."""


def setup(*, verbose: bool, stream: TextIO | None = None) -> logging.Handler:
    """Sends all logging to `stream` (stderr); called once by the command line."""
    handler = _Stderr() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("boxd").setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("wrkfs").setLevel(logging.DEBUG if verbose else logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler
