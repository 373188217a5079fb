"""Failures as answers, and the log filter; the rest of the shell is tested on a real server."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from boxd import errors
from boxd.http.middleware.guard import Guard
from boxd.http.requests.errors import answer_for, method_not_allowed
from boxd.http.requests.exchange import exchange_of
from boxd.http.server.logs import LOGGER, UvicornFilter
from boxd.observation import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from boxd.observation import Event


def all_errors() -> list[type[errors.BoxdError]]:
    """Every class of the tree."""
    found: list[type[errors.BoxdError]] = []
    todo: list[type[errors.BoxdError]] = [errors.BoxdError]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if kind.__module__ == "boxd.errors":
            found.append(kind)
    return found


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_of_the_service_is_an_answer(kind: type[errors.BoxdError]) -> None:
    alike = (errors.InvalidKey, errors.InvalidShare)
    error = kind() if kind in alike else kind("what 'it' \udcff says\n")
    answer = answer_for(error)
    assert answer.status == kind.http_status
    # A lone surrogate is no Unicode: it is written as the text of its escape.
    assert json.loads(answer.body) == {"error": str(error).replace("\udcff", r"\udcff")}


def test_a_key_that_was_revoked_meanwhile_is_told_what_an_unknown_one_is() -> None:
    assert answer_for(errors.InvalidKey("API key x was revoked")) == answer_for(errors.InvalidKey())


def test_refusals_are_answers_with_their_headers() -> None:
    refused = answer_for(method_not_allowed("GET, HEAD"))
    assert (refused.status, refused.headers) == (405, [(b"allow", b"GET, HEAD")])
    assert json.loads(refused.body) == {"error": "method not allowed here; allowed: GET, HEAD"}


def scope(**changes: object) -> Scope:
    """A plain GET as a server describes it."""
    return {
        "type": "http",
        "method": "GET",
        "http_version": "1.1",
        "raw_path": b"/x",
        "query_string": b"",
        "headers": [],
        **changes,
    }


async def serve(app: ASGIApp, described: Scope) -> list[Message]:
    """What a guarded application sends."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(dict(message))

    await Guard(app)(described, receive, send)
    return sent


async def test_a_failure_after_the_response_began_is_not_answered_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise errors.Unavailable("the store is out")

    sent = await serve(app, scope())
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_what_ends_after_a_whole_response_is_no_alarm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"all"})
        raise errors.InvalidKey("API key x was revoked")

    sent = await serve(app, scope())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_leaves_a_refused_handshake_is_no_failure() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise errors.InvalidKey

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        raise ConnectionResetError(message["type"])

    await Guard(app)(scope(type="websocket"), receive, send)


async def test_cancelling_passes_through() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await serve(app, scope())


async def test_other_scopes_are_left_alone() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("not reached")

    assert await serve(app, {"type": "lifespan"}) == []


def record(
    level: int, text: str, *args: object, error: BaseException | None = None
) -> logging.LogRecord:
    """A line of the server's own logger."""
    info = (type(error), error, None) if error is not None else None
    return logging.LogRecord(LOGGER, level, __file__, 1, text, args, info)


def test_query_strings_are_redacted_and_clients_faults_are_no_alarm() -> None:
    chosen = UvicornFilter()
    shown = record(
        logging.ERROR, '%s - "WebSocket %s" 403', "1.2.3.4:5", "/v1/mcp?key=svc_secret&a=b"
    )
    chosen.filter(shown)
    assert shown.getMessage() == '1.2.3.4:5 - "WebSocket /v1/mcp?***" 403'
    for line in (
        record(logging.WARNING, "Invalid HTTP request received."),
        record(logging.ERROR, "Exception in ASGI application\n", error=asyncio.CancelledError()),
    ):
        chosen.filter(line)
        assert line.levelno == logging.DEBUG
    real = record(logging.ERROR, "Exception in ASGI application\n", error=LookupError("x"))
    chosen.filter(real)
    assert real.levelno == logging.ERROR


class Recorder:
    """An observer that records what the guard reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str]] = []
        self.parents: list[str] = []

    @contextmanager
    def work(self, work: Work, name: str = "", parent: str = "") -> Iterator[Recorder]:
        """Record the parent."""
        assert work is Work.HTTP
        self.parents.append(parent)
        yield self

    def end_as(self, name: str, outcome: str) -> None:
        """Record the end."""
        self.reports.append((name, outcome))

    def event(self, event: Event) -> None:
        """The guard reports none."""
        raise AssertionError(event)


async def observe(described: Scope, app: ASGIApp) -> Recorder:
    """Return what an observer of a request hears."""
    recorder = Recorder()

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        del message

    await Guard(app, observer=recorder)(described, receive, send)
    return recorder


async def _fails(scope: Scope, receive: Receive, send: Send) -> None:
    exchange_of(scope).route = "/v1/boxes/{ref}"
    raise errors.NotFound("no such box")


async def _is_silent(scope: Scope, receive: Receive, send: Send) -> None:
    return


async def test_an_observer_gets_the_route_and_not_the_path() -> None:
    recorder = await observe(scope(raw_path=b"/v1/boxes/mine", query_string=b"key=x"), _fails)
    assert recorder.reports == [("GET /v1/boxes/{ref}", "404")]


async def test_a_method_of_a_client_is_one_of_a_few() -> None:
    assert (await observe(scope(method="BREW"), _is_silent)).reports == [("OTHER -", "none")]


@pytest.mark.parametrize(
    ("values", "parent"),
    [
        ([], ""),
        ([b"00-aa-bb-01"], "00-aa-bb-01"),
        ([b"00-aa-bb-01", b"00-cc-dd-01"], ""),
        ([b"x" * 200], ""),
    ],
)
async def test_only_a_single_short_parent_is_honoured(values: list[bytes], parent: str) -> None:
    headers = [(b"traceparent", value) for value in values]
    assert (await observe(scope(headers=headers), _is_silent)).parents == [parent]
