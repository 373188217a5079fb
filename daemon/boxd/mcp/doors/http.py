"""The door for clients by URL: Streamable HTTP.

Since 2026-07-28 a request is a POST of its own. Before, a session lasts over requests: POSTs bring
messages, and are answered with JSON or, when something is told before the answer, with events; one
GET at a time brings what is told without being asked. A session belongs to the key that began it.

In a session a lost connection cancels nothing: events have ids, and a GET with `Last-Event-ID`
continues behind that event, for as long as `boxd.mcp.sessions.http_session` allows. Without a
session the protocol has a lost connection cancel its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from boxd.errors import BadRequest, BoxdError, NotFound, QuotaExceeded
from boxd.mcp.messages import wire
from boxd.mcp.messages.events import Events, send_empty, send_json
from boxd.mcp.messages.parked import ParkedAnswers
from boxd.mcp.sessions.http_session import HttpSession
from boxd.mcp.sessions.session import Session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from types import ModuleType

    from boxd.boxes.limits.budgets.results import Budgets
    from boxd.mcp.messages.events import Message, Send
    from boxd.mcp.messages.replies import Replies, Reply
    from boxd.operations import Operations
    from boxd.principal import Principal

SESSIONS = 16
"""Sessions of one key."""
IDLE_S = 30 * 60.0
"""A session that serves nothing for so long is over."""
KEEPALIVE_S = 15.0
EVENTS_AFTER_S = 1.0
"""A request that is not answered by then is answered with events, so that it can be resumed."""
RESUMABLE = "2025-11-25"
"""The version since which an event without data may come first, to tell clients an id."""
RETRY_MS = 1000
"""How long such clients wait before they come back."""
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
    def last_event(self) -> str | None:
        """The id of the last event that the client has seen, where it resumes a stream."""
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
        self._parked = ParkedAnswers()

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
            message = bridge.parsed(raw)
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
            await self._serve(session, message, raw, request)

    async def get(self, principal: Principal, request: Request) -> None:
        """Tells news until the client goes, or comes for them once more; or goes on with a stream.

        BadRequest, NotFound.
        """
        session = self._find(principal, request)
        number = None
        if request.last_event is not None:
            replies, number = session.position(request.last_event)
            if replies is not None:
                with self._using(session):
                    await self._deliver(session, replies, request, after=number)
                return
        await self._tell_news(session, request, number)

    async def _tell_news(self, session: HttpSession, request: Request, after: int | None) -> None:
        """Tells news until another GET does. `after`: again those behind this event."""
        session.reading.set()
        session.reading = replaced = asyncio.Event()
        events = Events(request.send, [(SESSION_ID, session.id.encode("ascii"))])
        # The GET before this one takes no more news once it is over.
        async with session.telling:
            position = session.tell_again(after)
            with self._using(session):
                telling = _tell_news(
                    session, events, position if request.version == RESUMABLE else None
                )
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
            async with self._operations.visits.visit(principal, WHY):
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
        session = HttpSession(principal, self._parked.of(principal.owner))
        session.serving = asyncio.create_task(self._run(bridge, session), name="mcp session")
        session.serving.add_done_callback(_tell_failure)
        self._sessions[session.id] = session
        begun = False
        try:
            with self._using(session):
                begun = await self._serve(session, message, raw, request)
        finally:
            if not begun:
                await self._end(session)

    def _make_room(self, principal: Principal) -> None:
        """One that serves nothing may have to go for another of its key."""
        mine = [one for one in self._sessions.values() if _same_key(one.principal, principal)]
        if len(mine) < SESSIONS:
            return
        idle = [one for one in mine if not one.busy]
        unused = next((one for one in idle if not one.working), idle[0] if idle else None)
        if unused is None:
            raise QuotaExceeded(f"limit reached: {SESSIONS} sessions of one key are in use")
        self._forget(unused)
        unused.serving.cancel()

    async def _run(self, bridge: ModuleType, session: HttpSession) -> None:
        """Serves a session to its end; raises what ended it."""
        try:
            async with self._operations.visits.visit(session.principal, WHY):
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
        session.close()
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
        replies = session.expect(number)
        session.feed(message)
        at_once = raw["method"] == "tools/call" and request.version == RESUMABLE
        return await self._deliver(session, replies, request, after=0 if at_once else None)

    async def _deliver(
        self, session: HttpSession, replies: Replies, request: Request, *, after: int | None = None
    ) -> bool:
        """Sends what is told about a request, its answer last; whether that is there, and good.

        `after`: events begin at once, behind the reply of this number; None: if it takes long.
        """
        bridge = await self._loaded()
        answering = _Answering(session, replies, request, after)
        replaced = session.enter(replies)
        try:
            await _while_it_lasts(session, answering.run(), request.closed, replaced)
        finally:
            cancellation = bridge.cancellation(replies.request)
            cancel = partial(session.feed, cancellation)
            session.leave(replies, cancel, complete=answering.complete)
        if not (answering.done or request.closed.is_set() or replaced.is_set()):
            raise NotFound("the session was ended; begin another one with initialize")
        if replaced.is_set() and not (answering.done or request.closed.is_set()):
            await answering.events.finish()
        return answering.good


class _Answering:
    """What one connection is sent about a request: JSON if only the answer comes, else events."""

    def __init__(
        self, session: HttpSession, replies: Replies, request: Request, after: int | None
    ) -> None:
        self.done = False
        """The answer was sent."""
        self.complete = False
        """It was sent as JSON: the client knows no event at which it could resume."""
        self.good = False
        header = (SESSION_ID, session.id.encode("ascii"))
        self.events = Events(request.send, [header])
        self._header = header
        self._replies = replies
        self._request = request
        self._at_once = after is not None
        self._position = after or 0

    async def run(self) -> None:
        """Sends it."""
        if self._at_once:
            await self._show_position()
        while not self._replies.is_over(self._position):
            pause = KEEPALIVE_S if self.events.begun else EVENTS_AFTER_S
            try:
                async with asyncio.timeout(pause):
                    reply = await self._replies.next(self._position)
            except TimeoutError:
                if self.events.begun:
                    await self.events.keepalive()
                else:
                    await self._show_position()
                continue
            await self._send(reply)
            if reply.last:
                return
        self.done = True
        await self.events.finish()

    async def _send(self, reply: Reply) -> None:
        self._position = reply.number
        if reply.last and not self.events.begun:
            await send_json(self._request.send, 200, reply.text, [self._header])
            self.complete = True
        else:
            await self.events.event(reply.text, self._event, last=reply.last)
        if reply.last:
            self.done, self.good = True, reply.good

    async def _show_position(self) -> None:
        """Begins the events with an id, at which a client resumes that sees no other event."""
        if self._request.version == RESUMABLE:
            await self.events.prime(self._event, RETRY_MS)
        else:
            await self.events.position(self._event)

    @property
    def _event(self) -> str:
        return f"{self._replies.stream}-{self._position}"


async def _tell_news(session: HttpSession, events: Events, position: str | None) -> None:
    """Tells what changes. `position`: the id of the event before, for clients that resume."""
    await events.begin()
    await events.keepalive()
    if position is not None:
        await events.prime(position, RETRY_MS)
    while True:
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                uri = await session.news.next()
        except TimeoutError:
            await events.keepalive()
        else:
            await events.event(wire.updated(uri), session.told(uri))


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
