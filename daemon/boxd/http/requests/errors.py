"""Protocol adapter only. Errors as HTTP responses: always a JSON object `{"error": string}`."""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.errors import BoxdError, InvalidKey

if TYPE_CHECKING:
    from collections.abc import Callable

JSON_TYPE = (b"content-type", b"application/json")
_log = logging.getLogger("boxd.http")


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def lines(self) -> list[tuple[bytes, bytes]]:
        """Return the header lines, with content type and length."""
        return [JSON_TYPE, (b"content-length", b"%d" % len(self.body)), *self.headers]


class Refusal(Exception):
    """A request that this layer refuses. `headers`: further header lines of the response."""

    def __init__(self, status: int, text: str, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


def method_not_allowed(allowed: str) -> Refusal:
    """Return a 405 refusal. `allowed`: the value of `Allow`."""
    text = f"method not allowed here; allowed: {allowed}"
    return Refusal(405, text, [(b"allow", allowed.encode())])


def error_answer(
    status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None
) -> Answer:
    """Return the response `{"error": text}`.

    Characters outside ASCII are escaped, so no text can break the JSON. A lone surrogate, which
    JSON cannot represent, becomes the text of its escape.
    """
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return Answer(status, json.dumps({"error": text}).encode(), headers or [])


def answer_for(error: Exception, named: Callable[[str], str] = str) -> Answer:
    """Return the response to an error.

    The log has an unexpected error under an id; the response shows only the id. `named` inserts the
    name of the SSH server into error texts that refer to it.
    """
    if isinstance(error, InvalidKey):
        # Always the same bytes, so the response does not reveal that a key was just revoked.
        return error_answer(401, str(InvalidKey()), [(b"www-authenticate", b"Bearer")])
    if isinstance(error, BoxdError):
        seconds = error.retry_after_s
        headers = [] if seconds is None else [(b"retry-after", b"%d" % seconds)]
        return error_answer(error.http_status, named(str(error)), headers)
    if isinstance(error, Refusal):
        return error_answer(error.status, str(error), error.headers)
    return internal_error(error)


def internal_error(error: BaseException) -> Answer:
    """Log an error with its traceback, and return a 500 response with the id of the log entry."""
    number = secrets.token_hex(6)
    _log.error("internal error %s", number, exc_info=error)
    return error_answer(500, f"internal error ({number})")
