"""Between our doors and the protocol's library. Nothing else uses more of it than its low-level
server.

A door brings texts and takes texts; the library wants streams of its messages, and decides by the
first request which era of the protocol a connection speaks.
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
from boxd.mcp.library.unsent import Unsent
from boxd.mcp.messages import wire
from boxd.mcp.messages.encoding import COMPACT, text_of
from boxd.mcp.messages.outbox import Outbox, Slow
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
    """The next message of a client; None: there are no more."""
    Send = Callable[[str], Awaitable[None]]
    Scope = MutableMapping[str, Any]
    AsgiReceive = Callable[[], Awaitable[Scope]]
    AsgiSend = Callable[[Scope], Awaitable[None]]

MAX_OPEN = 64
"""Requests of one connection that are not answered; then no more is read. Those that may stay open
for long are fewer, so that their cancellation is always read."""
FIRST_CALL = "first call initialize"
LAST_WORDS_S = 5.0
"""For what was answered before the client had nothing more to say."""

# It warns of what clients do wrong, and shows what they sent.
logging.getLogger("mcp").setLevel(logging.ERROR)


async def converse(
    operations: Operations,
    principal: Principal,
    budget: Budget,
    receive: Receive,
    send: Send,
    *,
    linger: float = 0,
) -> None:
    """Serves one connection that carries messages both ways, until the client ends it.

    What is open then has `linger` seconds to be answered. Raises Slow when the client does not
    read, and what `receive` and `send` raise.
    """
    outbox = Outbox()
    watch = Watch(lambda uri: outbox.push(wire.updated(uri)), reads=True)
    session = Session(operations, principal, budget, watch)
    with operations.visits.changes(principal) as listener, Unsent() as unsent:
        writing = _Writing(outbox, unsent)
        reading = _Reading(receive, writing, linger)
        server = build_server(session, unsent)
        serving = serve_dual_era_loop(
            server, reading, writing, lifespan_state=None, init_options=OPTIONS
        )
        await _first(
            asyncio.create_task(_to_the_end(serving, outbox), name="mcp"),
            asyncio.create_task(_sending(outbox, send), name="mcp output"),
            asyncio.create_task(watch.run(listener), name="mcp pushes"),
            asyncio.create_task(_dropping(outbox), name="mcp slow client"),
        )


async def converse_http(operations: Operations, budget: Budget, client: HttpSession) -> None:
    """Serves a client that began with a handshake and comes by HTTP, until it is cancelled."""
    watch = Watch(client.news.tell)
    session = Session(operations, client.principal, budget, watch)
    with operations.visits.changes(client.principal) as listener, Unsent() as unsent:
        server = build_server(session, unsent)
        posted, routed = _Posted(client, unsent), _Routed(client, unsent)
        serving = serve_loop(server, posted, routed, lifespan_state=None, session_id=client.id)
        await _first(
            asyncio.create_task(serving, name="mcp"),
            asyncio.create_task(watch.run(listener), name="mcp pushes"),
        )


async def exchange(session: Session, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
    """Serves one HTTP request of the protocol without a handshake, its answer included."""
    with Unsent() as unsent:

        async def release_and_send(message: Scope) -> None:
            # What is sent is made; how fast the client reads holds up no other of its owner.
            unsent.release_all()
            await send(message)

        server = build_server(session, unsent)
        await handle_modern_request(server, None, False, None, scope, receive, release_and_send)


def cancellation(number: str | int) -> JSONRPCMessage:
    """That nobody wants an answer to a request any more."""
    params = {"requestId": number}
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)


async def _to_the_end(serving: Awaitable[None], outbox: Outbox) -> None:
    """All that was answered is to be sent, also when the client has nothing more to say."""
    await serving
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            await outbox.drained()


async def _sending(outbox: Outbox, send: Send) -> None:
    while True:
        await send(await outbox.take())


async def _dropping(outbox: Outbox) -> None:
    await outbox.full.wait()
    raise Slow


async def _first(*tasks: asyncio.Task[None]) -> None:
    """Waits for the first of several to end, ends the others, and raises what it raised."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Stream:
    """What the library takes for a stream."""

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
        """Nothing is held."""


class _Reading(_Stream):
    """The messages of a client that are whole, and not out of place."""

    def __init__(self, receive: Receive, writing: _Writing, linger: float) -> None:
        self._receive = receive
        self._writing = writing
        self._linger = linger
        self._begun = False
        self._ended = False

    def __aiter__(self) -> _Reading:
        return self

    async def __anext__(self) -> SessionMessage:
        return await self.receive()

    async def receive(self) -> SessionMessage:
        """The next one. What is none is answered here.

        The library reads again after an end that comes before the first request.
        """
        while not self._ended:
            await self._writing.few()
            text = await self._receive()
            if text is None:
                self._ended = True
                await self._writing.answered(self._linger)
                break
            try:
                message = parsed(wire.read(text))
                self._check_first(message)
            except wire.Unreadable as refused:
                await self._writing.answer(refused.answer)
                continue
            return SessionMessage(message, self._writing.expecting(message))
        raise StopAsyncIteration

    def _check_first(self, message: JSONRPCMessage) -> None:
        if self._begun or not isinstance(message, JSONRPCRequest) or message.method == "ping":
            return
        modern = wire.is_modern({"params": message.params})
        if message.method != "initialize" and not modern:
            raise wire.Unreadable(wire.INVALID_REQUEST, FIRST_CALL, message.id)
        self._begun = True


def parsed(raw: dict[str, Any]) -> JSONRPCMessage:
    """A message that `wire.read` has read. Raises Unreadable."""
    to = wire.request_id(raw)
    try:
        if "id" in raw and "method" in raw and to is None:
            raise ValueError  # else it would be taken for a notification
        return jsonrpc_message_adapter.validate_python(raw, by_name=False)
    except ValueError:
        text = "this is not a JSON-RPC 2.0 message"
        raise wire.Unreadable(wire.INVALID_REQUEST, text, to) from None


async def written(message: JSONRPCMessage) -> str:
    """One message as text."""
    plain = message.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return await text_of(plain, COMPACT)


class _Writing(_Stream):
    """Answers wait for room; what is told without being asked for does not."""

    def __init__(self, outbox: Outbox, unsent: Unsent) -> None:
        self._outbox = outbox
        self._unsent = unsent
        self._open = 0
        self._fewer = asyncio.Event()

    def expecting(self, message: JSONRPCMessage) -> ServerMessageMetadata | None:
        """Counts a request until it is answered, or nobody wants an answer any more."""
        if not isinstance(message, JSONRPCRequest):
            return None
        self._open += 1
        number = message.id

        async def unanswered() -> None:
            self._unsent.release(number)
            self._settled()

        return ServerMessageMetadata(on_request_unanswered=unanswered)

    def _settled(self) -> None:
        self._open -= 1
        self._fewer.set()

    async def send(self, item: SessionMessage) -> None:
        """Sends one message of the library's."""
        message = item.message
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            try:
                await self.answer(await written(message))
            finally:
                self._unsent.release(message.id)
            self._settled()
        else:
            self._outbox.push(await written(message))

    async def answer(self, text: str) -> None:
        """Sends an answer."""
        await self._outbox.put(text)

    async def few(self) -> None:
        """Waits until not too many requests are open."""
        await self._until(MAX_OPEN - 1)

    async def answered(self, seconds: float) -> None:
        """Waits until none is open, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._until(0)

    async def _until(self, most: int) -> None:
        while self._open > most:
            self._fewer.clear()
            await self._fewer.wait()


class _Posted(_Stream):
    """The messages that a client posts."""

    def __init__(self, client: HttpSession, unsent: Unsent) -> None:
        self._client = client
        self._unsent = unsent

    def __aiter__(self) -> _Posted:
        return self

    async def __anext__(self) -> SessionMessage:
        return await self.receive()

    async def receive(self) -> SessionMessage:
        """The next one."""
        message = await self._client.next()
        if not isinstance(message, JSONRPCRequest):
            return SessionMessage(cast("JSONRPCMessage", message))
        client, unsent, number = self._client, self._unsent, message.id

        async def settled() -> None:
            unsent.release(number)
            client.settle(number)

        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=settled))


class _Routed(_Stream):
    """What is told goes where the request came from that it is about."""

    def __init__(self, client: HttpSession, unsent: Unsent) -> None:
        self._client = client
        self._unsent = unsent

    async def send(self, item: SessionMessage) -> None:
        """Sends one message of the library's."""
        message, about = item.message, item.metadata
        if isinstance(message, JSONRPCError) and message.error.code == CONNECTION_CLOSED:
            return  # why the session is over is told by its end
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            try:
                await self._answer(message)
            finally:
                self._unsent.release(message.id)
            return
        number = getattr(about, "related_request_id", None)
        if (replies := self._replies(number)) is not None:
            replies.tell(await written(message))

    async def _answer(self, message: JSONRPCResponse | JSONRPCError) -> None:
        number = message.id
        if number is not None and self._client.replies(number) is not None:
            text = await written(message)
            self._client.answer(number, text, good=isinstance(message, JSONRPCResponse))

    def _replies(self, number: str | int | None) -> Replies | None:
        return None if number is None else self._client.replies(number)
