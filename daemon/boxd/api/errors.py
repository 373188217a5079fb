"""Protocol adapter only. Failures as HTTP answers: always a JSON object `{"error": string}`."""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from boxd.errors import BoxdError, InvalidKey

if TYPE_CHECKING:
    from collections.abc import Callable

JSON_TYPE = (b"content-type", b"application/json")
_log = logging.getLogger("boxd.api")


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def lines(self) -> list[tuple[bytes, bytes]]:
        """Header lines with type and length."""
        return [JSON_TYPE, (b"content-length", b"%d" % len(self.body)), *self.headers]


class Refusal(Exception):
    """A request that this layer refuses, with status and further header lines."""

    def __init__(self, status: int, text: str, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


def method_not_allowed(allowed: str) -> Refusal:
    """405 with `Allow`."""
    text = f"method not allowed here; allowed: {allowed}"
    return Refusal(405, text, [(b"allow", allowed.encode())])


def error_answer(
    status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None
) -> Answer:
    """`{"error": text}`; anything outside ASCII is escaped, so no text can break the JSON."""
    return Answer(status, json.dumps({"error": text}).encode(), headers or [])


def answer_for(error: Exception, named: Callable[[str], str] = str) -> Answer:
    """The answer to a failure; an unforeseen one is logged under an id that is shown. `named` puts
    the name of the front door into texts that lead there.
    """
    if isinstance(error, InvalidKey):
        # Always the same bytes: one that was revoked while its request waited is not told so.
        return error_answer(401, str(InvalidKey()), [(b"www-authenticate", b"Bearer")])
    if isinstance(error, BoxdError):
        return error_answer(error.http_status, named(str(error)))
    if isinstance(error, Refusal):
        return error_answer(error.status, str(error), error.headers)
    if isinstance(error, HTTPException):
        return _answer_for_http(error)
    if isinstance(error, RequestValidationError):
        return error_answer(400, _first_problem(error))
    return internal_error(error)


def internal_error(error: BaseException) -> Answer:
    """500 with an id; the details are only in the log."""
    number = secrets.token_hex(6)
    _log.error("internal error %s", number, exc_info=error)
    return error_answer(500, f"internal error ({number})")


def _answer_for_http(error: HTTPException) -> Answer:
    if error.status_code == 405:
        methods = (error.headers or {}).get("Allow", "").split(", ")
        refusal = method_not_allowed(", ".join(_with_head(methods)))
        return error_answer(405, str(refusal), refusal.headers)
    if error.status_code == 404:
        return error_answer(404, "no such path; the API is below /v1")
    return error_answer(error.status_code, str(error.detail))


def _with_head(methods: list[str]) -> list[str]:
    """HEAD is answered wherever GET is."""
    return sorted({*methods, "HEAD"} if "GET" in methods else {*methods})


def _first_problem(error: RequestValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}"
