"""Logging to stderr: one line a record, as text or as JSON, secrets and control bytes masked.

The formatter masks the finished line and tracebacks, so callers do not have to. Masking is the last
line of defence: secrets are `Secret` objects, which the daemon does not log. Truncation precedes
masking, because clients choose parts of a line and masking runs on the event loop.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from traceback import TracebackException
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from logging import _SysExcInfoType as _ExcInfo

MASK = "***"
MAX_MESSAGE = 8192
"""Maximum length of one message with its fields, in characters. The formatter truncates before it
masks."""
MAX_PIECE = 2048
"""Maximum length of one traceback frame, or of the text of one exception, in characters."""
FIRST_PIECES = 8
LAST_PIECES = 32
"""Pieces of a longer traceback that remain: the start, and the end with the last exception."""
# Masking runs on the event loop, so each pattern takes time linear in the text. A quantifier is
# possessive, or its run ends where the next match can begin. A match takes its whole run with it.
_SECRETS = (
    re.compile(r"(svcs?_)[0-9A-Za-z]{16,}+"),
    re.compile(
        r"(?i)((?:password|secret_key|secret|access_key|token)['\"]?\s*+[=:]\s*+['\"]?)[^\s'\",&]++"
    ),
    re.compile(r"(?i)((?:authorization|x-api-key|set-cookie|cookie)['\"]?\s*+[=:]\s*+)[^\r\n]++"),
    re.compile(r"(?i)([?&](?:k|%6b)(?:e|%65)(?:y|%79)=)[^\s&\"']++"),
    re.compile(r"(?i)(\bbearer\s++)\S++"),
    re.compile(r"(?s)(-----BEGIN [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----).*?(?=-----END|\Z)"),
)
_URL_PASSWORD = re.compile(r"(://[^\s:/@]*+:)(\S++)")
_CUT_TOKEN = re.compile(r"(svcs?_)[0-9A-Za-z]++\Z")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_MEMBERS = frozenset(["time", "level", "logger", "message", "exception"])
_QUIET = ("asyncssh", "botocore", "aiobotocore", "asyncio")


def redact(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return the first `limit` characters of `text` with all likely secrets masked.

    Truncation precedes masking, which bounds the time. A secret that the truncation divides is
    masked, too.
    """
    rest = len(text) - limit
    if rest <= 0:
        return _masked(text, is_cut=False)
    return f"{_masked(text[:limit], is_cut=True)} [{rest} more characters]"


def _masked(text: str, *, is_cut: bool) -> str:
    for pattern in _SECRETS:
        text = pattern.sub(lambda match: match.group(1) + MASK, text)
    text = _URL_PASSWORD.sub(lambda match: _masked_url(match, is_cut=is_cut), text)
    return _CUT_TOKEN.sub(lambda match: match.group(1) + MASK, text) if is_cut else text


def _masked_url(match: re.Match[str], *, is_cut: bool) -> str:
    """Mask the password in a match of `_URL_PASSWORD`; it ends at the last `@` of the word."""
    if is_cut and match.end() == len(match.string):
        return f"{match[1]}{MASK}"
    _, at, host = match[2].rpartition("@")
    return f"{match[1]}{MASK}@{host}" if at else match[0]


def escape(text: str) -> str:
    """Return `text` with control and bidirectional characters as escapes. LF remains."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


class LineFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO boxd.boxes: box created box=0f3a... image=debian`."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a record in UTC with milliseconds."""
        del datefmt
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + (
            f".{int(record.msecs):03d}Z"
        )

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, truncated and masked, and its traceback."""
        fields = "".join(
            f" {name}={value}" for name, value in record.__dict__.items() if name not in _STANDARD
        )
        head = f"{self.formatTime(record)} {record.levelname} {record.name}: "
        # A line break inside a message must not look like another record.
        message = record.getMessage().replace("\n", "\\n")
        line = redact(head + message + fields)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return escape(line)

    def formatException(self, ei: _ExcInfo) -> str:
        """Return a masked traceback.

        Each frame and each exception is truncated separately. No secret spans two of them.
        """
        if ei[0] is None or ei[1] is None:
            return ""
        pieces = list(TracebackException(ei[0], ei[1], ei[2], compact=True).format())
        left_out = len(pieces) - FIRST_PIECES - LAST_PIECES
        if left_out > 0:
            pieces[FIRST_PIECES:-LAST_PIECES] = [f"  [{left_out} more frames]\n"]
        return "\n".join(redact(piece.rstrip("\n"), MAX_PIECE) for piece in pieces)


class JsonFormatter(LineFormatter):
    """One JSON object a line: time, level, logger, message, the record's fields, and exception.

    Masks and truncates the same texts as `LineFormatter`. A field with the name of another member
    has an underscore after its name.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object of a record, in ASCII."""
        members: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": escape(redact(record.getMessage())),
        }
        for name, value in record.__dict__.items():
            if name not in _STANDARD:
                members[f"{name}_" if name in _MEMBERS else name] = _member(name, value)
        if record.exc_info:
            members["exception"] = escape(self.formatException(record.exc_info))
        return json.dumps(members)


def _member(name: str, value: object) -> object:
    """Return a field as a JSON value. The name of a field decides whether it is a secret."""
    plain = f"{name}={value}"
    masked = redact(plain, MAX_PIECE)
    if masked == plain and isinstance(value, bool | int):
        return value
    return escape(masked.removeprefix(f"{name}="))


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which a progress spinner replaces while it is active."""

    @property
    def stream(self) -> TextIO:
        """The stream of the next record."""
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        """Ignore the assignment: the stream is always the current `sys.stderr`."""


def setup(*, verbose: bool, stream: TextIO | None = None, is_json: bool = False) -> logging.Handler:
    """Send all log records to `stream` (default: stderr). The command line calls this once."""
    handler = _Stderr() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if is_json else LineFormatter())
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


def is_json() -> bool:
    """Return whether the log of this process is in JSON."""
    return any(isinstance(one.formatter, JsonFormatter) for one in logging.getLogger().handlers)
