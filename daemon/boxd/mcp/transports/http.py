"""The transport for HTTP clients: Streamable HTTP.

Since protocol version 2026-07-28 each request is an independent POST. In earlier versions a session
spans requests. A POST carries one message. Its response is JSON, or a stream of events if there are
notifications before the answer. One GET at a time receives the notifications that belong to no
request. A session belongs to the key that started it.

In a session, a lost connection cancels nothing. Events have ids, and a GET with `Last-Event-ID`
continues after that event, within the limits of `boxd.mcp.sessions.http_session`. Without a
session, a lost connection cancels its request, as the protocol requires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from boxd.boxes.limits.budgets.owner_map import OwnerMap
from boxd.errors import BadRequest, BoxdError, NotFound, QuotaExceeded
from boxd.mcp.messages import wire
from boxd.mcp.messages.events import EventStream, send_empty, send_json
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

MAX_SESSIONS = 16
"""Maximum number of sessions of one key."""
IDLE_S = 30 * 60.0
"""A session ends after it has been idle for this time."""
KEEPALIVE_S = 15.0
EVENTS_AFTER_S = 1.0
"""A request that is unanswered after this time gets events, so that it can be resumed."""
PRIMING_VERSION = "2025-11-25"
"""The protocol version in which a stream may begin with an empty event that has only an id."""
RETRY_MS = 1000
"""Time that clients of that version wait before they reconnect."""
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
SESSION_ID = b"mcp-session-id"
VISIT_REASON = "mcp"

_log = logging.getLogger(__name__)


class Request(Protocol):
    """One HTTP request to `/v1/mcp` whose body was read, with its ASGI callables."""

    @property
    def scope(self) -> Message:
        """The ASGI scope."""
        ...

    @property
    def receive(self) -> Callable[[], Awaitable[Message]]:
        """Receives the ASGI messages after the body: the disconnect."""
        ...

    @property
    def send(self) -> Send:
        """Sends the response."""
        ...

    @property
    def closed(self) -> asyncio.Event:
        """Set when the client has disconnected."""
        ...

    @property
    def body(self) -> bytes:
        """The complete body."""
        ...

    @property
    def session(self) -> str | None:
        """The session id in the headers."""
        ...

    @property
    def last_event(self) -> str | None:
        """The id of the last event that the client received, if it resumes a stream."""
        ...

    @property
    def version(self) -> str | None:
        """The protocol version in the headers."""
        ...


@dataclass(slots=True)
class _Stateless:
    """The state that concurrent requests of one key without a session share."""

    session: Session
    users: int = 0


class HttpTransport:
    """Serves HTTP requests. Critical section: `_sessions` changes without an await."""

    def __init__(
        self,
        operations: Operations,
        budgets: Budgets,
        load_bridge: Callable[[], Awaitable[ModuleType]],
    ) -> None:
        """`load_bridge` imports the module that uses the MCP library, once."""
        self._operations = operations
        self._budgets = budgets
        self._load_bridge = load_bridge
        self._sessions: dict[str, HttpSession] = {}
        """By id, least recently used first."""
        self._stateless: dict[str, _Stateless] = {}
        self._parked = OwnerMap(ParkedAnswers)

    async def close(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            await self._end(session)

    async def post(self, principal: Principal, request: Request) -> None:
        """Serve one message.

        Raises BadRequest, NotFound, QuotaExceeded; InvalidKey or Forbidden when the key loses its
        access.
        """
        bridge = await self._load_bridge()
        if request.version is not None and request.version not in HANDSHAKE_VERSIONS:
            await self._post_stateless(bridge, principal, request)
            return
        try:
            raw = wire.parse(request.body)
            message = bridge.validate(raw)
            if request.session is None and raw.get("method") != "initialize":
                if wire.is_modern(raw):
                    await self._post_stateless(bridge, principal, request)
                    return
                if (request_id := wire.request_id(raw)) is not None:
                    raise wire.InvalidMessage(
                        wire.INVALID_REQUEST, bridge.INITIALIZE_FIRST, request_id
                    )
                self._find(principal, request)
        except wire.InvalidMessage as error:
            await send_json(request.send, 400, error.answer)
            return
        if request.session is None:
            await self._start_session(bridge, principal, message, raw, request)
            return
        session = self._find(principal, request)
        with self._in_use(session):
            await self._serve(session, message, raw, request)

    async def get(self, principal: Principal, request: Request) -> None:
        """Send notifications until the client disconnects or another GET replaces this one.

        With `Last-Event-ID`, resume the stream of that event. Raises BadRequest and NotFound.
        """
        session = self._find(principal, request)
        number = None
        if request.last_event is not None:
            replies, number = session.find_event(request.last_event)
            if replies is not None:
                with self._in_use(session):
                    await self._deliver(session, replies, request, after=number)
                return
        await self._notify(session, request, number)

    async def _notify(self, session: HttpSession, request: Request, after: int | None) -> None:
        """Send notifications until another GET does.

        `after`: first repeat the notifications after the event of this number.
        """
        session.replaced.set()
        session.replaced = replaced = asyncio.Event()
        events = EventStream(request.send, [(SESSION_ID, session.id.encode("ascii"))])
        # Wait until the previous GET has stopped: it must not take further notifications.
        async with session.notifying:
            event_id = session.replay_updates(after)
            with self._in_use(session):
                notifying = _send_updates(
                    session, events, event_id if request.version == PRIMING_VERSION else None
                )
                await _run_until(session, notifying, request.closed, replaced)
        if not request.closed.is_set():
            await events.finish()

    async def delete(self, principal: Principal, request: Request) -> None:
        """End a session. Raises BadRequest and NotFound."""
        await self._end(self._find(principal, request))
        await send_empty(request.send, 204)

    # --- without sessions ----------------------------------------------------------------

    async def _post_stateless(
        self, bridge: ModuleType, principal: Principal, request: Request
    ) -> None:
        key = principal.key_id or principal.owner
        if (shared := self._stateless.get(key)) is None:
            budget = self._budgets.of(principal.owner)
            shared = _Stateless(Session(self._operations, principal, budget))
            self._stateless[key] = shared
        shared.users += 1
        try:
            async with self._operations.visits.visit(principal, VISIT_REASON):
                receive = _with_body(request)
                await bridge.serve_request(shared.session, request.scope, receive, request.send)
        finally:
            shared.users -= 1
            if not shared.users:
                self._stateless.pop(key, None)

    # --- sessions ------------------------------------------------------------------------

    async def _start_session(
        self,
        bridge: ModuleType,
        principal: Principal,
        message: object,
        raw: dict[str, Any],
        request: Request,
    ) -> None:
        """Start a session and serve its handshake. End the session if the handshake fails."""
        self._make_room(principal)
        session = HttpSession(principal, self._parked.of(principal.owner))
        session.serving = asyncio.create_task(self._run(bridge, session), name="mcp session")
        session.serving.add_done_callback(_log_failure)
        self._sessions[session.id] = session
        started = False
        try:
            with self._in_use(session):
                started = await self._serve(session, message, raw, request)
        finally:
            if not started:
                await self._end(session)

    def _make_room(self, principal: Principal) -> None:
        """End an unused session of the key if the key has MAX_SESSIONS. Raises QuotaExceeded."""
        sessions = [
            session
            for session in self._sessions.values()
            if _same_key(session.principal, principal)
        ]
        if len(sessions) < MAX_SESSIONS:
            return
        idle = [session for session in sessions if not session.busy]
        unused = next(
            (session for session in idle if not session.working), idle[0] if idle else None
        )
        if unused is None:
            raise QuotaExceeded(
                f"limit reached: {MAX_SESSIONS} sessions of one key are in use; end one of them"
            )
        self._remove(unused)
        unused.serving.cancel()

    async def _run(self, bridge: ModuleType, session: HttpSession) -> None:
        """Serve a session until it ends; raise the error that ended it."""
        try:
            async with self._operations.visits.visit(session.principal, VISIT_REASON):
                budget = self._budgets.of(session.principal.owner)
                await bridge.serve_http_session(self._operations, budget, session)
        finally:
            self._remove(session)

    def _find(self, principal: Principal, request: Request) -> HttpSession:
        if request.session is None:
            raise BadRequest("the header Mcp-Session-Id is missing; call initialize first")
        session = self._sessions.get(request.session)
        if session is None or not _same_key(session.principal, principal):
            raise NotFound("no such session; start a new one with initialize")
        self._sessions[session.id] = self._sessions.pop(session.id)
        return session

    def _remove(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        session.close()
        if session.idle is not None:
            session.idle.cancel()

    async def _end(self, session: HttpSession) -> None:
        self._remove(session)
        session.serving.cancel()
        await asyncio.gather(session.serving, return_exceptions=True)

    @contextlib.contextmanager
    def _in_use(self, session: HttpSession) -> Iterator[None]:
        """Stop the idle timer of a session while the context lasts."""
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
        """Serve one message. Return whether it was a request that succeeded."""
        request_id = wire.request_id(raw)
        if "method" not in raw or request_id is None:
            session.feed(message)
            await send_empty(request.send, 202)
            return False
        replies = session.open_request(request_id)
        session.feed(message)
        at_once = raw["method"] == "tools/call" and request.version == PRIMING_VERSION
        return await self._deliver(session, replies, request, after=0 if at_once else None)

    async def _deliver(
        self, session: HttpSession, replies: Replies, request: Request, *, after: int | None = None
    ) -> bool:
        """Send the replies to a request, its answer last. Return whether the request succeeded.

        `after`: start the events at once, after the reply of this number; None: start them only if
        the answer takes long.
        """
        bridge = await self._load_bridge()
        writer = _ReplyWriter(session, replies, request, after)
        replaced = session.add_reader(replies)
        try:
            await _run_until(session, writer.run(), request.closed, replaced)
        finally:
            cancellation = bridge.cancellation(replies.request)
            cancel = partial(session.feed, cancellation)
            session.remove_reader(replies, cancel, complete=writer.complete)
        if not (writer.done or request.closed.is_set() or replaced.is_set()):
            raise NotFound("the session has ended; start a new one with initialize")
        if replaced.is_set() and not (writer.done or request.closed.is_set()):
            await writer.events.finish()
        return writer.success


class _ReplyWriter:
    """Writes the replies to one connection: JSON for an answer alone, otherwise events."""

    def __init__(
        self, session: HttpSession, replies: Replies, request: Request, after: int | None
    ) -> None:
        self.done = False
        """Whether the answer was sent."""
        self.complete = False
        """Whether it was sent as JSON: the client has no event id from which it could resume."""
        self.success = False
        header = (SESSION_ID, session.id.encode("ascii"))
        self.events = EventStream(request.send, [header])
        self._header = header
        self._replies = replies
        self._request = request
        self._at_once = after is not None
        self._position = after or 0

    async def run(self) -> None:
        """Send all replies up to the answer."""
        if self._at_once:
            await self._send_position()
        while not self._replies.is_finished(self._position):
            pause = KEEPALIVE_S if self.events.started else EVENTS_AFTER_S
            try:
                async with asyncio.timeout(pause):
                    reply = await self._replies.next(self._position)
            except TimeoutError:
                if self.events.started:
                    await self.events.send_keepalive()
                else:
                    await self._send_position()
                continue
            await self._send(reply)
            if reply.last:
                return
        self.done = True
        await self.events.finish()

    async def _send(self, reply: Reply) -> None:
        self._position = reply.number
        if reply.last and not self.events.started:
            await send_json(self._request.send, 200, reply.text, [self._header])
            self.complete = True
        else:
            await self.events.send_event(reply.text, self._event_id, last=reply.last)
        if reply.last:
            self.done, self.success = True, reply.success

    async def _send_position(self) -> None:
        """Send an event id first, so that a client can resume even before the first event."""
        if self._request.version == PRIMING_VERSION:
            await self.events.send_priming_event(self._event_id, RETRY_MS)
        else:
            await self.events.send_id(self._event_id)

    @property
    def _event_id(self) -> str:
        return f"{self._replies.stream}-{self._position}"


async def _send_updates(session: HttpSession, events: EventStream, event_id: str | None) -> None:
    """Send a notification for each changed resource.

    `event_id`: the id of the previous event, for clients that resume.
    """
    await events.start()
    await events.send_keepalive()
    if event_id is not None:
        await events.send_priming_event(event_id, RETRY_MS)
    while True:
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                uri = await session.updates.next()
        except TimeoutError:
            await events.send_keepalive()
        else:
            await events.send_event(wire.resource_updated(uri), session.record_update(uri))


async def _run_until(
    session: HttpSession, work: Coroutine[Any, Any, None], *events: asyncio.Event
) -> None:
    """Run `work` until it is done, one of the events is set, or the session ends.

    Raises the error that ended the work or the session.
    """
    working = asyncio.create_task(work, name="mcp http answer")
    waiting = [asyncio.create_task(event.wait(), name="mcp http client") for event in events]
    try:
        await asyncio.wait(
            {working, session.serving, *waiting}, return_when=asyncio.FIRST_COMPLETED
        )
        if working.done():
            working.result()
        elif session.serving.done() and not session.serving.cancelled():
            session.serving.result()
    finally:
        for task in (working, *waiting):
            task.cancel()
        await asyncio.gather(working, *waiting, return_exceptions=True)


def _log_failure(serving: asyncio.Task[None]) -> None:
    """Log an unexpected error of a session. Requests of the session report expected errors."""
    error = None if serving.cancelled() else serving.exception()
    if error is not None and not isinstance(error, BoxdError):
        _log.error("an MCP session failed", exc_info=error)


def _with_body(request: Request) -> Callable[[], Awaitable[Message]]:
    """Return an ASGI `receive` that delivers the body again, and then the connection's messages."""
    first = [{"type": "http.request", "body": request.body, "more_body": False}]

    async def receive() -> Message:
        return first.pop() if first else await request.receive()

    return receive


def _same_key(one: Principal, other: Principal) -> bool:
    return (one.owner, one.key_id, one.scope) == (other.owner, other.key_id, other.scope)
