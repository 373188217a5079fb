"""Sends requests and returns checked answers: retries, limits, and the errors of the network."""

from __future__ import annotations

import ssl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx

from boxd_client._sync.basis import Stream, pause, pieces
from boxd_client._sync.network import DeadlineTransport
from boxd_client.deadline import deadline
from boxd_client.errors import (
    AnswerTooLarge,
    BoxError,
    Conflict,
    ConnectionLost,
    NotFound,
    ProtocolError,
    QuotaExceeded,
    RequestTimeout,
    Unavailable,
)
from boxd_client.events import EventParser
from boxd_client.pieces import PIECE
from boxd_client.protocol import (
    EVENTS,
    MAX_ERROR,
    VERSION,
    Answer,
    Request,
    Retry,
    RetryPolicy,
    check_framing,
    check_status,
    media_type,
    with_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd_client.config import Settings
    from boxd_client.events import Event

CONNECTIONS = 64
"""Maximum number of connections. Each open stream uses one."""
CONNECT_S = 10.0
UPLOAD_S = 60.0
"""Seconds without progress after which an upload fails."""
LINGER_S = 1.0
"""Seconds that the end of a stream may take after its last event."""
STALL_S = 60.0
"""Seconds of silence after which a stream fails. The service sends a comment every 15 s."""


class Transport:
    """The connections to one service. `timeout`: seconds for a whole answer by default."""

    def __init__(self, settings: Settings, timeout: float, policy: RetryPolicy) -> None:
        self.settings = settings
        self.timeout = timeout
        self.policy = policy
        context = ssl.create_default_context()
        headers = {
            "Authorization": f"Bearer {settings.key}",
            "User-Agent": f"boxd-client/{VERSION}",
            "Accept-Encoding": "identity",
        }
        self._http = httpx.Client(
            transport=DeadlineTransport(context, CONNECTIONS),
            headers=headers,
            follow_redirects=False,
            trust_env=False,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def send(self, request: Request) -> Answer:
        """Return the answer of a request; repeat the request if its rules allow that.

        Raises ServiceError, ConnectionLost, ProtocolError or AnswerTooLarge.
        """
        request = with_key(request)
        attempt = 1
        while True:
            try:
                answer = self._send_once(request)
                check_status(answer)
                return answer
            except BoxError as error:
                if attempt > 1 and request.method == "DELETE" and isinstance(error, NotFound):
                    return Answer(204, {})  # an earlier attempt removed it
                wait = self._wait(request, error, attempt)
                if wait is None:
                    raise
            pause(wait)
            attempt += 1

    @contextmanager
    def open(self, request: Request, expected: tuple[int, ...] = (200, 201)) -> Iterator[Body]:
        """Send a request once and yield its answer while the body arrives."""
        limit = request.timeout or self.timeout
        with _network(request), deadline(limit):
            response = self._http.send(self._build(request, min(STALL_S, limit)), stream=True)
        try:
            body = Body(response, request)
            if body.status not in expected:
                with _network(request), deadline(self.timeout):
                    content = body.head(MAX_ERROR)
                check_status(body.answer(content), expected)
            check_framing(body.answer())
            yield body
        finally:
            response.close()

    def events(self, request: Request, last: str, budget: float | None = None) -> Stream[Event]:
        """Send a request once and yield the events of its answer, until the stream ends.

        `last` is the name of the last event. `budget`: seconds that all waits may take together.
        """
        ended = False
        with self.open(request) as body:
            if media_type(body.headers) != EVENTS:
                raise ProtocolError(f"the answer is {media_type(body.headers)[:80]!r}, no events")
            parser = EventParser()
            try:
                for chunk in body.chunks(budget):
                    for event in parser.feed(chunk):
                        yield event
                        if event.name == last:
                            ended = True
                            body.expire(LINGER_S)
            except ConnectionLost:
                if not ended:
                    raise

    def _send_once(self, request: Request) -> Answer:
        limit = request.timeout or self.timeout
        with _network(request), deadline(limit):
            response = self._http.send(self._build(request, limit), stream=True)
            try:
                body = Body(response, request)
                if response.status_code >= 300:
                    return body.answer(body.head(MAX_ERROR))
                if request.method != "HEAD":
                    check_framing(body.answer())
                return body.answer(body.collect(request.limit))
            finally:
                response.close()

    def _build(self, request: Request, read: float) -> httpx.Request:
        content, headers = request.content, dict(request.headers)
        if isinstance(content, bytes) and len(content) > PIECE:
            headers["Content-Length"] = str(len(content))
        if content is not None and (not isinstance(content, bytes) or len(content) > PIECE):
            content = pieces(content)
        return self._http.build_request(
            request.method,
            self.settings.url + request.target,
            headers=headers,
            content=content,
            timeout=httpx.Timeout(CONNECT_S, read=read, write=UPLOAD_S, pool=read),
        )

    def _wait(self, request: Request, error: BoxError, attempt: int) -> float | None:
        """Return the seconds before the next attempt, or None."""
        if request.retry is Retry.NEVER:
            return None
        if isinstance(error, QuotaExceeded | Unavailable):
            return self.policy.delay(attempt, error.retry_after)
        repeated = request.retry is Retry.KEYED and attempt > 1
        if isinstance(error, ConnectionLost) or (repeated and isinstance(error, Conflict)):
            # A conflict after a lost answer: the first request may still be running.
            return self.policy.delay(attempt)
        return None


class Body:
    """An answer whose body is still arriving."""

    def __init__(self, response: httpx.Response, request: Request) -> None:
        self._response = response
        self._request = request
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._budget: float | None = None

    def answer(self, body: bytes = b"") -> Answer:
        """Return the answer with a body."""
        return Answer(self.status, self.headers, body)

    def expire(self, seconds: float) -> None:
        """Limit the rest of the body to a number of seconds."""
        self._budget = seconds

    def chunks(self, budget: float | None = None) -> Stream[bytes]:
        """Yield the body. `budget`: seconds that all waits for it may take together.

        Raises ConnectionLost if the body is not complete.
        """
        iterator = self._response.iter_raw()
        self._budget = budget
        while True:
            start = time.monotonic()
            with _network(self._request), deadline(self._budget):
                chunk = next(iterator, None)
            if chunk is None:
                return
            if self._budget is not None:
                self._budget = max(self._budget - (time.monotonic() - start), 0.0)
            yield chunk

    def collect(self, limit: int) -> bytes:
        """Return the whole body. Raises AnswerTooLarge if it exceeds `limit` bytes."""
        buffer = bytearray()
        for chunk in self.chunks():
            buffer += chunk
            if len(buffer) > limit:
                raise AnswerTooLarge(f"{_name(self._request)}: the answer exceeds {limit} bytes")
        return bytes(buffer)

    def head(self, limit: int) -> bytes:
        """Return the begin of the body of an error, at most `limit` bytes."""
        buffer = bytearray()
        for chunk in self._response.iter_raw():
            buffer += chunk
            if len(buffer) > limit:
                break
        return bytes(buffer[:limit])


def _name(request: Request) -> str:
    return f"{request.method} {request.path}"


@contextmanager
def _network(request: Request) -> Iterator[None]:
    """Turn errors of the network into errors of this library."""
    try:
        yield
    except httpx.TimeoutException as error:
        step = "connect" if isinstance(error, httpx.ConnectTimeout) else "answer"
        if isinstance(error, httpx.WriteTimeout):
            step = "read the request"
        text = f"{_name(request)}: the service did not {step} in time"
        raise RequestTimeout(text) from error
    except httpx.ConnectError as error:
        raise ConnectionLost(f"{_name(request)}: cannot connect: {error}") from error
    except httpx.HTTPError as error:
        raise ConnectionLost(f"{_name(request)}: the connection broke: {error}") from error
    except (httpx.InvalidURL, httpx.StreamError) as error:
        raise ProtocolError(f"{_name(request)}: {error}") from error
