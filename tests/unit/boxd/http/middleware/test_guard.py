"""Failures as answers, and the log filter; the rest of the shell is tested on a real server."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import pytest

from boxd import errors
from boxd.http.middleware.guard import Guard
from boxd.http.requests.errors import answer_for, method_not_allowed
from boxd.http.server.logs import LOGGER, UvicornFilter

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
