"""The rules of the HTTP API: requests, answers, errors and retries. It does no I/O."""

from __future__ import annotations

import json
import secrets
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from boxd_client.errors import (
    BY_STATUS,
    InvalidRequest,
    ProtocolError,
    QuotaExceeded,
    ServiceError,
    ServiceFailed,
    Unavailable,
)
from boxd_client.models import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "0.1.0"
MAX_JSON = 64 * 1024 * 1024
"""Maximum size of a JSON answer in bytes."""
MAX_ERROR = 64 * 1024
"""Maximum size of the body of an error that is read, in bytes."""
MAX_ERROR_TEXT = 2000
JSON = "application/json"
EVENTS = "text/event-stream"
_RANDOM = secrets.SystemRandom()

ModelT = TypeVar("ModelT", bound=Model)


class Retry(Enum):
    """When a request may be repeated."""

    NEVER = "never"
    """A second request could have a second effect."""
    SAFE = "safe"
    """A second request has the effect of one."""
    KEYED = "keyed"
    """A creation: its Idempotency-Key makes a second request return the first answer."""


@dataclass(frozen=True)
class Request:
    """One HTTP request. `path` is percent-encoded; parameters that are None are omitted.

    `timeout` limits the whole answer, in seconds; of a stream, only its headers.
    """

    method: str
    path: str
    params: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Any = None
    retry: Retry = Retry.NEVER
    timeout: float | None = None
    limit: int = MAX_JSON

    @property
    def target(self) -> str:
        """Return the path with its query."""
        pairs = [(name, _parameter(value)) for name, value in self.params.items()]
        texts = [(name, value) for name, value in pairs if value is not None]
        query = urlencode(texts, errors="surrogateescape")
        return f"{self.path}?{query}" if query else self.path


@dataclass(frozen=True)
class Answer:
    """A complete answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long a request is repeated. Times are in seconds.

    `longest` is the longest wait that the service may ask for with Retry-After; if it asks for a
    longer one, the error is raised at once.
    """

    attempts: int = 4
    first: float = 0.2
    longest: float = 10.0

    def delay(self, attempt: int, retry_after: float | None = None) -> float | None:
        """Return the wait after the failure of an attempt (from 1); None: give up."""
        if attempt >= self.attempts:
            return None
        if retry_after is not None:
            return retry_after if retry_after <= self.longest else None
        longest = min(self.longest, self.first * 2 ** (attempt - 1))
        return _RANDOM.uniform(longest / 2, longest)


def json_request(
    method: str,
    path: str,
    body: Mapping[str, object],
    *,
    params: Mapping[str, object] | None = None,
    retry: Retry = Retry.NEVER,
) -> Request:
    """Return a request with a JSON object as its body. Members that are None are omitted."""
    members = {name: value for name, value in body.items() if value is not None}
    content = json.dumps(members, ensure_ascii=False).encode("utf-8", "strict")
    return Request(method, path, params or {}, {"Content-Type": JSON}, content, retry)


def with_key(request: Request) -> Request:
    """Return a creation with an Idempotency-Key of its own."""
    if request.retry is not Retry.KEYED or "Idempotency-Key" in request.headers:
        return request
    return replace(request, headers={**request.headers, "Idempotency-Key": uuid.uuid4().hex})


def segment(text: str, what: str = "name") -> str:
    """Return a text as one segment of a path. Raises InvalidRequest for an empty one."""
    if text in ("", ".", ".."):
        raise InvalidRequest(f"{text!r} is not a {what}")
    return quote(text, safe="", errors="surrogateescape")


def file_path(path: str) -> str:
    """Return the path of a file as segments of a URL, without a leading slash."""
    words = path.split("/")
    if any(word in (".", "..") for word in words) or "\0" in path:
        raise InvalidRequest(f"{path!r} contains '.', '..' or NUL")
    return quote(path.lstrip("/"), safe="/", errors="surrogateescape")


def media_type(headers: Mapping[str, str]) -> str:
    """Return the media type of an answer in lower case, without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def check_framing(answer: Answer) -> None:
    """Raise ProtocolError unless the end of the body can be told from a broken connection."""
    if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ProtocolError("the answer is compressed, which the request does not allow")
    if answer.status in (204, 304):
        return
    if "content-length" not in answer.headers and "transfer-encoding" not in answer.headers:
        raise ProtocolError("the answer has no length; is this the URL of the service?")


def check_status(answer: Answer, expected: tuple[int, ...] = (200, 201, 202, 204)) -> None:
    """Raise the error of an answer whose status is not an expected one."""
    if answer.status in expected:
        return
    if 300 <= answer.status < 400:
        place = answer.headers.get("location", "")[:200]
        raise ProtocolError(
            f"the service redirects to {place!r}; redirects are not followed. Use its final URL"
        )
    if answer.status < 400:
        raise ProtocolError(f"the answer has the unexpected status {answer.status}")
    raise error_of(answer)


def error_of(answer: Answer) -> ServiceError:
    """Return the error of an answer with a status of 4xx or 5xx."""
    default = InvalidRequest if answer.status < 500 else ServiceFailed
    kind = BY_STATUS.get(answer.status, default)
    error = kind(_error_text(answer), answer.status, answer.headers.get("x-request-id"))
    if isinstance(error, QuotaExceeded | Unavailable):
        error.retry_after = retry_after(answer.headers)
    return error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After, which may be a date; None: missing or not valid."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit() and len(text) < 9:
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def json_of(answer: Answer) -> object:
    """Return the JSON value of an answer. Raises ProtocolError."""
    if media_type(answer.headers) != JSON:
        kind = media_type(answer.headers)[:80]
        raise ProtocolError(f"the answer is {kind!r} instead of JSON; is this the service's URL?")
    try:
        return json.loads(answer.body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ProtocolError("the answer is not valid JSON") from None


def model_of(answer: Answer, model: type[ModelT]) -> ModelT:
    """Return an answer as a value. Raises ProtocolError."""
    return model.from_json(json_of(answer))


def models_of(answer: Answer, model: type[ModelT]) -> list[ModelT]:
    """Return an answer that is a list of values. Raises ProtocolError."""
    values = json_of(answer)
    if not isinstance(values, list):
        raise ProtocolError("the answer is not a list")
    return [model.from_json(value) for value in values]


def _parameter(value: object) -> str | None:
    if value is None or value is False:
        return None
    return "true" if value is True else str(value)


def _error_text(answer: Answer) -> str:
    text = ""
    if media_type(answer.headers) == JSON:
        try:
            body = json.loads(answer.body.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            body = None
        if isinstance(body, dict) and isinstance(body.get("error"), str):
            text = body["error"]
    if not text:
        text = f"the service answered with the status {answer.status}"
    return "".join(
        one if one.isprintable() or one == "\n" else "?" for one in text[:MAX_ERROR_TEXT]
    )
