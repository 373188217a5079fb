"""Connects the transports to the MCP library. Only this package uses the library.

A transport receives and sends texts. The library expects streams of its message objects. The first
request decides whether a connection speaks the protocol with or without a handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Self, cast

from mcp.server._streamable_http_modern import handle_modern_request
from mcp.server.runner import serve_dual_era_loop, serve_loop
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from boxd.mcp.library.server import OPTIONS, build_server
from boxd.mcp.library.unsent_results import UnsentResults
from boxd.mcp.messages import wire
from boxd.mcp.messages.encoding import COMPACT, encode_document
from boxd.mcp.messages.outbox import Outbox, SlowClient
from boxd.mcp.sessions.session import Session
from boxd.mcp.sessions.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from types import TracebackType

    from boxd.boxes.limits.budgets.results import Budget
    from boxd.mcp.messages.replies import Replies
    from boxd.mcp.sessions.http_session import HttpSession
    from boxd.operations import Operations
    from boxd.principal import Principal

    Receive = Callable[[], Awaitable[str | bytes | None]]
    """Waits for the next message of a client; None: the client sends no more messages."""
    Send = Callable[[str], Awaitable[None]]
    Scope = MutableMapping[str, Any]
    AsgiReceive = Callable[[], Awaitable[Scope]]
    AsgiSend = Callable[[Scope], Awaitable[None]]

MAX_OPEN_REQUESTS = 64
"""Maximum number of unanswered requests of one connection. At the limit, the service reads no
messages. Calls and subscriptions have lower limits, so the service always reads their cancellation.
"""
INITIALIZE_FIRST = "the first request must be initialize"
DRAIN_S = 5.0
"""Time to send the remaining answers after the client sent its last message."""

# The library warns of client errors, and its warnings contain client data.
logging.getLogger("mcp").setLevel(logging.ERROR)


async def serve_connection(
    operations: Operations,
    principal: Principal,
    budget: Budget,
    receive: Receive,
    send: Send,
    *,
    linger: float = 0,
) -> None:
    """Serve one bidirectional connection until the client ends it.

    Open requests then have `linger` seconds to be answered. Raises SlowClient when the client does
    not read, and the errors of `receive` and `send`.
    """
    outbox = Outbox()
    watch = Watch(lambda uri: outbox.push(wire.resource_updated(uri)), subscribe_on_read=True)
    session = Session(operations, principal, budget, watch)
    with operations.visits.changes(principal) as listener, UnsentResults() as unsent:
        writer = _ConnectionWriter(outbox, unsent)
        reader = _ConnectionReader(receive, writer, linger)
        server = build_server(session, unsent)
        serving = serve_dual_era_loop(
            server, reader, writer, lifespan_state=None, init_options=OPTIONS
        )
        await _run_until_first(
            asyncio.create_task(_serve_and_drain(serving, outbox), name="mcp"),
            asyncio.create_task(_send_messages(outbox, send), name="mcp output"),
            asyncio.create_task(watch.run(listener), name="mcp pushes"),
            asyncio.create_task(_raise_when_full(outbox), name="mcp slow client"),
        )


async def serve_http_session(operations: Operations, budget: Budget, client: HttpSession) -> None:
    """Serve an HTTP client that started with a handshake, until this is cancelled."""
    watch = Watch(client.updates.add)
    session = Session(operations, client.principal, budget, watch)
    with operations.visits.changes(client.principal) as listener, UnsentResults() as unsent:
        server = build_server(session, unsent)
        reader, writer = _HttpReader(client, unsent), _HttpWriter(client, unsent)
        serving = serve_loop(server, reader, writer, lifespan_state=None, session_id=client.id)
        await _run_until_first(
            asyncio.create_task(serving, name="mcp"),
            asyncio.create_task(watch.run(listener), name="mcp pushes"),
        )


async def serve_request(
    session: Session, scope: Scope, receive: AsgiReceive, send: AsgiSend
) -> None:
    """Serve one HTTP request of the protocol without a handshake, and send its response."""
    with UnsentResults() as unsent:

        async def release_and_send(message: Scope) -> None:
            # The result is encoded. A client that reads slowly must not hold the owner's budget.
            unsent.release_all()
            await send(message)

        server = build_server(session, unsent)
        await handle_modern_request(server, None, False, None, scope, receive, release_and_send)


def cancellation(request_id: str | int) -> JSONRPCMessage:
    """Return the notification that the client no longer wants an answer to a request."""
    params = {"requestId": request_id}
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)


async def _serve_and_drain(serving: Awaitable[None], outbox: Outbox) -> None:
    """Serve until the client sends no more messages; then wait until all answers are sent."""
    await serving
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            await outbox.drained()


async def _send_messages(outbox: Outbox, send: Send) -> None:
    while True:
        await send(await outbox.take())


async def _raise_when_full(outbox: Outbox) -> None:
    await outbox.full.wait()
    raise SlowClient


async def _run_until_first(*tasks: asyncio.Task[None]) -> None:
    """Wait until one task ends, cancel the other tasks, and raise the error of the first."""
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Stream:
    """The part of the library's stream interface that needs no implementation."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Do nothing: a stream holds no resources."""


class _ConnectionReader(_Stream):
    """The valid messages of a bidirectional connection."""

    def __init__(self, receive: Receive, writer: _ConnectionWriter, linger: float) -> None:
        self._receive = receive
        self._writer = writer
        self._linger = linger
        self._initialized = False
        self._ended = False

    def __aiter__(self) -> _ConnectionReader:
        return self

    async def __anext__(self) -> SessionMessage:
        return await self.receive()

    async def receive(self) -> SessionMessage:
        """Return the next valid message. Invalid messages are answered here.

        The library reads again after an end that comes before the first request.
        """
        while not self._ended:
            await self._writer.wait_below_limit()
            text = await self._receive()
            if text is None:
                self._ended = True
                await self._writer.wait_answered(self._linger)
                break
            try:
                message = validate(wire.parse(text))
                self._check_first(message)
            except wire.InvalidMessage as error:
                await self._writer.answer(error.answer)
                continue
            return SessionMessage(message, self._writer.expect_answer(message))
        raise StopAsyncIteration

    def _check_first(self, message: JSONRPCMessage) -> None:
        if self._initialized or not isinstance(message, JSONRPCRequest) or message.method == "ping":
            return
        modern = wire.is_modern({"params": message.params})
        if message.method != "initialize" and not modern:
            raise wire.InvalidMessage(wire.INVALID_REQUEST, INITIALIZE_FIRST, message.id)
        self._initialized = True


def validate(raw: dict[str, Any]) -> JSONRPCMessage:
    """Convert the result of `wire.parse` to the library's type. Raises InvalidMessage."""
    request_id = wire.request_id(raw)
    try:
        if "id" in raw and "method" in raw and request_id is None:
            raise ValueError  # the library would accept it as a notification
        return jsonrpc_message_adapter.validate_python(raw, by_name=False)
    except ValueError:
        text = "the message is not a JSON-RPC 2.0 message"
        raise wire.InvalidMessage(wire.INVALID_REQUEST, text, request_id) from None


async def encode(message: JSONRPCMessage) -> str:
    """Encode one message of the library."""
    plain = message.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return await encode_document(plain, COMPACT)


class _ConnectionWriter(_Stream):
    """Sends answers and notifications to an outbox. Answers wait for room, notifications do not."""

    def __init__(self, outbox: Outbox, unsent: UnsentResults) -> None:
        self._outbox = outbox
        self._unsent = unsent
        self._open = 0
        self._closed_one = asyncio.Event()

    def expect_answer(self, message: JSONRPCMessage) -> ServerMessageMetadata | None:
        """Count a request as open until it is answered, or no longer needs an answer."""
        if not isinstance(message, JSONRPCRequest):
            return None
        self._open += 1
        request_id = message.id

        async def unanswered() -> None:
            self._unsent.release(request_id)
            self._close_one()

        return ServerMessageMetadata(on_request_unanswered=unanswered)

    def _close_one(self) -> None:
        self._open -= 1
        self._closed_one.set()

    async def send(self, item: SessionMessage) -> None:
        """Send one message of the library."""
        message = item.message
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            try:
                await self.answer(await encode(message))
            finally:
                self._unsent.release(message.id)
            self._close_one()
        else:
            self._outbox.push(await encode(message))

    async def answer(self, text: str) -> None:
        """Send an answer. Waits until the outbox has room."""
        await self._outbox.put(text)

    async def wait_below_limit(self) -> None:
        """Wait until fewer than MAX_OPEN_REQUESTS requests are open."""
        await self._wait_open(MAX_OPEN_REQUESTS - 1)

    async def wait_answered(self, seconds: float) -> None:
        """Wait until no request is open, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wait_open(0)

    async def _wait_open(self, most: int) -> None:
        while self._open > most:
            self._closed_one.clear()
            await self._closed_one.wait()


class _HttpReader(_Stream):
    """The messages that an HTTP client posts."""

    def __init__(self, client: HttpSession, unsent: UnsentResults) -> None:
        self._client = client
        self._unsent = unsent

    def __aiter__(self) -> _HttpReader:
        return self

    async def __anext__(self) -> SessionMessage:
        return await self.receive()

    async def receive(self) -> SessionMessage:
        """Wait for and return the next message."""
        message = await self._client.next()
        if not isinstance(message, JSONRPCRequest):
            return SessionMessage(cast("JSONRPCMessage", message))
        client, unsent, request_id = self._client, self._unsent, message.id

        async def unanswered() -> None:
            unsent.release(request_id)
            client.answer_cancelled(request_id)

        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=unanswered))


class _HttpWriter(_Stream):
    """Adds each message of the library to the replies of the request that it belongs to."""

    def __init__(self, client: HttpSession, unsent: UnsentResults) -> None:
        self._client = client
        self._unsent = unsent

    async def send(self, item: SessionMessage) -> None:
        """Send one message of the library."""
        message, metadata = item.message, item.metadata
        if isinstance(message, JSONRPCError) and message.error.code == CONNECTION_CLOSED:
            return  # the end of the session reports the reason
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            try:
                await self._answer(message)
            finally:
                self._unsent.release(message.id)
            return
        request_id = getattr(metadata, "related_request_id", None)
        if (replies := self._replies(request_id)) is not None:
            replies.add(await encode(message))

    async def _answer(self, message: JSONRPCResponse | JSONRPCError) -> None:
        request_id = message.id
        if request_id is not None and self._client.replies(request_id) is not None:
            text = await encode(message)
            self._client.answer(request_id, text, success=isinstance(message, JSONRPCResponse))

    def _replies(self, request_id: str | int | None) -> Replies | None:
        return None if request_id is None else self._client.replies(request_id)
