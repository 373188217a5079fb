"""The door for clients by URL: Streamable HTTP.

Since 2026-07-28 a request is a POST of its own. Before, a session lasts over requests: POSTs bring
messages, and are answered with JSON or, when something is told before the answer, with events; one
GET at a time brings what is told without being asked. A session belongs to the key that began it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from boxd.errors import BadRequest, BoxdError, NotFound, QuotaExceeded
from boxd.mcp import wire
from boxd.mcp.events import Events, send_empty, send_json
from boxd.mcp.httpsession import HttpSession
from boxd.mcp.session import Session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from types import ModuleType

    from boxd.mcp.budget import Budgets
    from boxd.mcp.events import Message, Send
    from boxd.mcp.httpsession import Replies
    from boxd.operations import Operations
    from boxd.principal import Principal

SESSIONS = 16
"""Sessions of one key."""
IDLE_S = 30 * 60.0
"""A session that serves nothing for so long is over."""
KEEPALIVE_S = 15.0
HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
SESSION_ID = b"mcp-session-id"
WHY = "mcp"

_log = logging.getLogger(__name__)


class Request(Protocol):
    """One HTTP request to `/v1/mcp`, its body read, for ASGI."""

    @property
    def scope(self) -> Message:
        """Its head."""
        ...

    @property
    def receive(self) -> Callable[[], Awaitable[Message]]:
        """What comes after its body: its end."""
        ...

    @property
    def send(self) -> Send:
        """Takes the answer."""
        ...

    @property
    def closed(self) -> asyncio.Event:
        """Set when its connection is gone."""
        ...

    @property
    def body(self) -> bytes:
        """All of it."""
        ...

    @property
    def session(self) -> str | None:
        """The session that it names."""
        ...

    @property
    def version(self) -> str | None:
        """The protocol's, as a header says."""
        ...


@dataclass(slots=True)
class _Shared:
    """What the requests of one key without a session have in common."""

    session: Session
    users: int = 0


class HttpDoor:
    """See the module. Sessions come and go between awaits only."""

    def __init__(
        self,
        operations: Operations,
        budgets: Budgets,
        loaded: Callable[[], Awaitable[ModuleType]],
    ) -> None:
        """`loaded` gives the bridge to the library."""
        self._operations = operations
        self._budgets = budgets
        self._loaded = loaded
        self._sessions: dict[str, HttpSession] = {}
        """In the order of their last use."""
        self._shared: dict[str, _Shared] = {}

    async def close(self) -> None:
        """Ends all sessions."""
        for session in list(self._sessions.values()):
            await self._end(session)

    async def post(self, principal: Principal, request: Request) -> None:
        """Serves one message.

        BadRequest, NotFound, QuotaExceeded; InvalidKey or Forbidden when its key may not go on.
        """
        bridge = await self._loaded()
        if request.version is not None and request.version not in HANDSHAKES:
            await self._post_alone(bridge, principal, request)
            return
        try:
            raw = wire.read(request.body)
            message = bridge.parsed(request.body)
            if request.session is None and raw.get("method") != "initialize":
                if wire.is_modern(raw):
                    await self._post_alone(bridge, principal, request)
                    return
                if (number := wire.request_id(raw)) is not None:
                    raise wire.Unreadable(wire.INVALID_REQUEST, bridge.FIRST_CALL, number)
                self._find(principal, request)
        except wire.Unreadable as refused:
            await send_json(request.send, 400, refused.answer)
            return
        if request.session is None:
            await self._begin(bridge, principal, message, raw, request)
            return
        session = self._find(principal, request)
        with self._using(session):
            await self._serve(bridge, session, message, raw, request)

    async def get(self, principal: Principal, request: Request) -> None:
        """Tells news until the client goes, or comes for them once more. BadRequest, NotFound."""
        session = self._find(principal, request)
        session.reading.set()
        session.reading = replaced = asyncio.Event()
        events = Events(request.send, [(SESSION_ID, session.id.encode("ascii"))])
        with self._using(session):
            telling = _tell_news(session, events)
            await _while_it_lasts(session, telling, request.closed, replaced)
        if not request.closed.is_set():
            await events.finish()

    async def delete(self, principal: Principal, request: Request) -> None:
        """Ends a session. BadRequest, NotFound."""
        await self._end(self._find(principal, request))
        await send_empty(request.send, 204)

    # --- without sessions ----------------------------------------------------------------

    async def _post_alone(self, bridge: ModuleType, principal: Principal, request: Request) -> None:
        key = principal.key_id or principal.owner
        if (shared := self._shared.get(key)) is None:
            budget = self._budgets.of(principal.owner)
            shared = _Shared(Session(self._operations, principal, budget))
            self._shared[key] = shared
        shared.users += 1
        try:
            async with self._operations.visit(principal, WHY):
                receive = _with_body(request)
                await bridge.exchange(shared.session, request.scope, receive, request.send)
        finally:
            shared.users -= 1
            if not shared.users:
                self._shared.pop(key, None)

    # --- sessions ------------------------------------------------------------------------

    async def _begin(
        self,
        bridge: ModuleType,
        principal: Principal,
        message: object,
        raw: dict[str, Any],
        request: Request,
    ) -> None:
        """A new session, unless its handshake fails."""
        self._make_room(principal)
        session = HttpSession(principal)
        session.serving = asyncio.create_task(self._run(bridge, session), name="mcp session")
        session.serving.add_done_callback(_tell_failure)
        self._sessions[session.id] = session
        begun = False
        try:
            with self._using(session):
                begun = await self._serve(bridge, session, message, raw, request)
        finally:
            if not begun:
                await self._end(session)

    def _make_room(self, principal: Principal) -> None:
        """One that serves nothing may have to go for another of its key."""
        mine = [one for one in self._sessions.values() if _same_key(one.principal, principal)]
        if len(mine) < SESSIONS:
            return
        unused = next((one for one in mine if not one.busy), None)
        if unused is None:
            raise QuotaExceeded(f"limit reached: {SESSIONS} sessions of one key are in use")
        self._forget(unused)
        unused.serving.cancel()

    async def _run(self, bridge: ModuleType, session: HttpSession) -> None:
        """Serves a session to its end; raises what ended it."""
        try:
            async with self._operations.visit(session.principal, WHY):
                budget = self._budgets.of(session.principal.owner)
                await bridge.converse_http(self._operations, budget, session)
        finally:
            self._forget(session)

    def _find(self, principal: Principal, request: Request) -> HttpSession:
        if request.session is None:
            raise BadRequest("Mcp-Session-Id is missing; a session begins with initialize")
        session = self._sessions.get(request.session)
        if session is None or not _same_key(session.principal, principal):
            raise NotFound("no such session; begin another one with initialize")
        self._sessions[session.id] = self._sessions.pop(session.id)
        return session

    def _forget(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        if session.idle is not None:
            session.idle.cancel()

    async def _end(self, session: HttpSession) -> None:
        self._forget(session)
        session.serving.cancel()
        await asyncio.gather(session.serving, return_exceptions=True)

    @contextlib.contextmanager
    def _using(self, session: HttpSession) -> Iterator[None]:
        """It is not idle while the context lasts."""
        session.busy += 1
        if session.idle is not None:
            session.idle.cancel()
        try:
            yield
        finally:
            session.busy -= 1
            if not session.busy and session.id in self._sessions:
                loop = asyncio.get_running_loop()
                session.idle = loop.call_later(IDLE_S, session.serving.cancel)

    async def _serve(
        self,
        bridge: ModuleType,
        session: HttpSession,
        message: object,
        raw: dict[str, Any],
        request: Request,
    ) -> bool:
        """Serves one message; whether it was a request, and succeeded."""
        number = wire.request_id(raw)
        if "method" not in raw or number is None:
            session.feed(message)
            await send_empty(request.send, 202)
            return False
        answering = _Answering(session, session.expect(number), request.send)
        session.feed(message)
        try:
            await _while_it_lasts(session, answering.run(), request.closed)
        finally:
            session.forget(number)
            if not answering.done:
                # Who closes the stream of a request wants no answer any more.
                session.feed(bridge.cancellation(number))
        if not answering.done and not request.closed.is_set():
            raise NotFound("the session was ended; begin another one with initialize")
        return answering.good


class _Answering:
    """The answer to one POST: JSON if nothing is told before it, else events."""

    def __init__(self, session: HttpSession, replies: Replies, send: Send) -> None:
        self.done = False
        self.good = False
        self._header = (SESSION_ID, session.id.encode("ascii"))
        self._replies = replies
        self._send = send

    async def run(self) -> None:
        """Sends it."""
        events = Events(self._send, [self._header])
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    reply = await self._replies.next()
            except TimeoutError:
                await events.keepalive()
                continue
            if reply.last:
                self.done, self.good = True, reply.good
            if reply.last and not events.begun:
                await send_json(self._send, 200, reply.text, [self._header])
            else:
                await events.event(reply.text, last=reply.last)
            if reply.last:
                return


async def _tell_news(session: HttpSession, events: Events) -> None:
    """Tells what changes."""
    await events.begin()
    await events.keepalive()
    while True:
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                uri = await session.news.next()
        except TimeoutError:
            await events.keepalive()
        else:
            await events.event(wire.updated(uri))


async def _while_it_lasts(
    session: HttpSession, work: Coroutine[Any, Any, None], *ends: asyncio.Event
) -> None:
    """Does `work` until it is done, or one of the events, or the session ends; raises what ended
    that."""
    doing = asyncio.create_task(work, name="mcp http answer")
    over = [asyncio.create_task(one.wait(), name="mcp http client") for one in ends]
    try:
        waited = {doing, session.serving, *over}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
        elif session.serving.done() and not session.serving.cancelled():
            session.serving.result()
    finally:
        for task in (doing, *over):
            task.cancel()
        await asyncio.gather(doing, *over, return_exceptions=True)


def _tell_failure(serving: asyncio.Task[None]) -> None:
    """What ended a session is for those that it serves; what should not happen is for the log."""
    error = None if serving.cancelled() else serving.exception()
    if error is not None and not isinstance(error, BoxdError):
        _log.error("an MCP session failed", exc_info=error)


def _with_body(request: Request) -> Callable[[], Awaitable[Message]]:
    """The body once more, then what the connection tells."""
    first = [{"type": "http.request", "body": request.body, "more_body": False}]

    async def receive() -> Message:
        return first.pop() if first else await request.receive()

    return receive


def _same_key(one: Principal, other: Principal) -> bool:
    return (one.owner, one.key_id, one.scope) == (other.owner, other.key_id, other.scope)
