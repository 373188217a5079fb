"""An HTTP client's session, after a handshake: its messages, their replies, and notifications.

A request outlives the connection that sent it. Without a connection, the client has RESUME_S to
resume the request before it is cancelled. Its answer is stored for ANSWER_S.

Only the method `next` awaits, so each change is atomic.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, QuotaExceeded
from boxd.mcp.messages import wire
from boxd.mcp.messages.replies import Replies
from boxd.mcp.sessions.watch import PendingUpdates
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.mcp.messages.parked import ParkedAnswers
    from boxd.principal import Principal

MAX_OPEN_REQUESTS = 64
"""Maximum number of unanswered requests of one session."""
MAX_ANSWERS = 64
"""Maximum number of answered requests of one session whose streams can be resumed."""
MAX_UPDATES = 64
"""Maximum number of changes of resources that are sent again to a client that resumes."""
RESUME_S = 300.0
"""A request that no connection reads for this time is cancelled."""
ANSWER_S = 300.0
"""An answer that no connection reads for this time is removed."""
CANCELLED = -32800
UPDATES_STREAM = 0
"""The number of the stream of resource notifications, which belong to no request."""

_EVENT_ID = re.compile(r"([0-9]{1,12})-([0-9]{1,12})", re.ASCII)


class HttpSession:
    """One session. It ends when its task `serving` ends."""

    def __init__(self, principal: Principal, parked: ParkedAnswers) -> None:
        self.id = random_hex(16)
        self.principal = principal
        self.updates = PendingUpdates()
        self.serving: asyncio.Task[None]
        self.busy = 0
        """HTTP requests that are being served."""
        self.idle: asyncio.TimerHandle | None = None
        """Ends the session unless a client uses it again."""
        self.replaced: asyncio.Event = asyncio.Event()
        """Set when another GET replaces the one that sends notifications."""
        self.notifying = asyncio.Lock()
        """Held by the GET that sends notifications."""
        self._parked = parked
        self._open: dict[str | int, Replies] = {}
        self._streams: dict[int, Replies] = {}
        """The replies that a connection reads or can resume, oldest first."""
        self._last_stream = UPDATES_STREAM
        self._sent_updates: deque[tuple[int, str | None]] = deque(maxlen=MAX_UPDATES)
        self._update_count = 0
        self._incoming: asyncio.Queue[object] = asyncio.Queue()

    def feed(self, message: object) -> None:
        """Add a client message, in the form of the MCP library."""
        self._incoming.put_nowait(message)

    async def next(self) -> object:
        """Wait for and return the next client message."""
        return await self._incoming.get()

    # --- requests ------------------------------------------------------------------------

    @property
    def working(self) -> bool:
        """Whether any request is unanswered, with or without a connection."""
        return bool(self._open)

    def open_request(self, request_id: str | int) -> Replies:
        """Register a request and return its replies. Raises BadRequest and QuotaExceeded."""
        if request_id in self._open:
            raise BadRequest("another open request has this id; give each request its own id")
        if len(self._open) >= MAX_OPEN_REQUESTS:
            raise QuotaExceeded(
                f"busy: {MAX_OPEN_REQUESTS} requests of this session are open; wait for an answer"
            )
        self._last_stream += 1
        replies = Replies(request_id, self._last_stream)
        self._open[request_id] = self._streams[self._last_stream] = replies
        return replies

    def replies(self, request_id: str | int) -> Replies | None:
        """Return the replies to an open request."""
        return self._open.get(request_id)

    def answer(self, request_id: str | int, text: str, *, success: bool) -> None:
        """Answer an open request."""
        if (replies := self._open.pop(request_id, None)) is None:
            return
        replies.answer(text, success=success)
        if not replies.readers:
            self._park(replies)

    def answer_cancelled(self, request_id: str | int) -> None:
        """Answer a cancelled request with an error, because HTTP requires a response."""
        text = wire.error_response(CANCELLED, "request cancelled", request_id)
        self.answer(request_id, text, success=False)

    # --- connections ---------------------------------------------------------------------

    def add_reader(self, replies: Replies) -> asyncio.Event:
        """Register the connection that delivers these replies from now on.

        The returned event is set when another connection replaces it.
        """
        replies.replaced.set()
        replies.replaced = replaced = asyncio.Event()
        replies.readers += 1
        self._stop_timer(replies)
        self._parked.remove(replies)
        return replaced

    def remove_reader(
        self, replies: Replies, cancel: Callable[[], None], *, complete: bool
    ) -> None:
        """Remove a closed connection.

        `complete`: the client has the answer, and no event id from which it could resume.
        `cancel` cancels an unanswered request if no connection resumes it in time.
        """
        replies.readers -= 1
        if replies.readers or replies.stream not in self._streams:
            return
        if complete:
            self._remove_stream(replies)
        elif replies.answered:
            self._park(replies)
        else:
            replies.timer = asyncio.get_running_loop().call_later(RESUME_S, cancel)

    def close(self) -> None:
        """Remove all replies, at the end of the session."""
        for replies in list(self._streams.values()):
            self._remove_stream(replies)

    def _park(self, replies: Replies) -> None:
        """Store an answer that no connection reads, for ANSWER_S."""
        self._stop_timer(replies)
        loop = asyncio.get_running_loop()
        replies.timer = loop.call_later(ANSWER_S, self._remove_stream, replies)
        self._parked.add(replies)
        parked = [
            stream for stream in self._streams.values() if stream.answered and not stream.readers
        ]
        for oldest in parked[:-MAX_ANSWERS]:
            self._remove_stream(oldest)

    def _remove_stream(self, replies: Replies) -> None:
        self._stop_timer(replies)
        self._parked.remove(replies)
        self._streams.pop(replies.stream, None)

    def _stop_timer(self, replies: Replies) -> None:
        if replies.timer is not None:
            replies.timer.cancel()
            replies.timer = None

    # --- events --------------------------------------------------------------------------

    def find_event(self, event_id: str) -> tuple[Replies | None, int]:
        """Return the stream and the number of an event; None: the notification stream.

        Raises BadRequest.
        """
        match = _EVENT_ID.fullmatch(event_id)
        if match is None:
            raise BadRequest("Last-Event-ID is not the id of an event of this session")
        stream, number = int(match[1]), int(match[2])
        if stream == UPDATES_STREAM:
            return None, number
        replies = self._streams.get(stream)
        if replies is None:
            raise BadRequest(
                "the stream of this Last-Event-ID has ended, or was not resumed in time; "
                "send the request again"
            )
        return replies, number

    @property
    def last_update_id(self) -> str:
        """The event id of the last notification."""
        return f"{UPDATES_STREAM}-{self._update_count}"

    def record_update(self, uri: str | None) -> str:
        """Record a notification before it is sent, and return its event id."""
        self._update_count += 1
        self._sent_updates.append((self._update_count, uri))
        return self.last_update_id

    def replay_updates(self, after: int | None) -> str:
        """Queue the notifications after the event of this number again; None: replay nothing.

        Returns the id of the last event that the client received.
        """
        if after is None:
            return self.last_update_id
        for number, uri in self._sent_updates:
            if number > after:
                self.updates.add(uri)
        return f"{UPDATES_STREAM}-{after}"
