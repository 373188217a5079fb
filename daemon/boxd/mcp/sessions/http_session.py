"""A client by HTTP that began with a handshake: what it sent, and what is to be told to it.

A request outlives the connection that brought it. Without a connection it has AWAY_S to be resumed
before it is cancelled, and its answer is kept for KEPT_S.

Nothing but the method `next` awaits, so each change is atomic.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, QuotaExceeded
from boxd.mcp.messages import wire
from boxd.mcp.messages.replies import Replies
from boxd.mcp.sessions.watch import News
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.mcp.messages.parked import Parked
    from boxd.principal import Principal

MAX_OPEN = 64
"""Requests of one session that are not answered."""
MAX_KEPT = 64
"""Answered requests of one session whose streams can be resumed."""
MAX_NEWS = 64
"""Changes of resources that are told again to a client that resumes."""
AWAY_S = 300.0
"""A request that no connection reads for so long is cancelled."""
KEPT_S = 300.0
"""An answer that no connection reads is forgotten after so long."""
CANCELLED = -32800
NEWS = 0
"""The stream of what is told without being asked."""

_EVENT = re.compile(r"([0-9]{1,12})-([0-9]{1,12})", re.ASCII)


class HttpSession:
    """See the module."""

    def __init__(self, principal: Principal, parked: Parked) -> None:
        self.id = random_hex(16)
        self.principal = principal
        self.news = News()
        self.serving: asyncio.Task[None]
        self.busy = 0
        """Requests that are being served."""
        self.idle: asyncio.TimerHandle | None = None
        self.reading: asyncio.Event = asyncio.Event()
        """Set when another GET takes the place of the one that is told the news."""
        self.telling = asyncio.Lock()
        """Held by the GET that tells the news."""
        self._parked = parked
        self._open: dict[str | int, Replies] = {}
        self._streams: dict[int, Replies] = {}
        """Those that a connection reads, or can resume, the oldest first."""
        self._count = NEWS
        self._told: deque[tuple[int, str | None]] = deque(maxlen=MAX_NEWS)
        self._told_count = 0
        self._incoming: asyncio.Queue[object] = asyncio.Queue()

    def feed(self, message: object) -> None:
        """A message of the client, as the library has them."""
        self._incoming.put_nowait(message)

    async def next(self) -> object:
        """The next message of the client."""
        return await self._incoming.get()

    # --- requests ------------------------------------------------------------------------

    @property
    def working(self) -> bool:
        """Whether a request is not answered yet, with a connection or without."""
        return bool(self._open)

    def expect(self, number: str | int) -> Replies:
        """The replies to a new request. BadRequest, QuotaExceeded."""
        if number in self._open:
            raise BadRequest("a request with this id is open; give each another one")
        if len(self._open) >= MAX_OPEN:
            raise QuotaExceeded(f"busy: {MAX_OPEN} requests of this session are open")
        self._count += 1
        self._open[number] = self._streams[self._count] = replies = Replies(number, self._count)
        return replies

    def replies(self, number: str | int) -> Replies | None:
        """The replies to an open request."""
        return self._open.get(number)

    def answer(self, number: str | int, text: str, *, good: bool) -> None:
        """Answers an open request."""
        if (replies := self._open.pop(number, None)) is None:
            return
        replies.answer(text, good=good)
        if not replies.readers:
            self._keep(replies)

    def settle(self, number: str | int) -> None:
        """A request was cancelled: its client, if it is there, has to have an answer."""
        self.answer(number, wire.error(CANCELLED, "request cancelled", number), good=False)

    # --- connections ---------------------------------------------------------------------

    def enter(self, replies: Replies) -> asyncio.Event:
        """A connection delivers these replies from now on. The event tells that another does."""
        replies.replaced.set()
        replies.replaced = replaced = asyncio.Event()
        replies.readers += 1
        self._stop_timer(replies)
        self._parked.remove(replies)
        return replaced

    def leave(self, replies: Replies, cancel: Callable[[], None], *, complete: bool) -> None:
        """The connection is gone. `complete`: the client has the answer and no event to resume at.

        `cancel` is called when no connection comes back in time for a request that goes on.
        """
        replies.readers -= 1
        if replies.readers or replies.stream not in self._streams:
            return
        if complete:
            self._forget(replies)
        elif replies.answered:
            self._keep(replies)
        else:
            replies.timer = asyncio.get_running_loop().call_later(AWAY_S, cancel)

    def close(self) -> None:
        """The session is over."""
        for replies in list(self._streams.values()):
            self._forget(replies)

    def _keep(self, replies: Replies) -> None:
        """Keeps an answer that no connection reads for a while."""
        self._stop_timer(replies)
        loop = asyncio.get_running_loop()
        replies.timer = loop.call_later(KEPT_S, self._forget, replies)
        self._parked.add(replies)
        kept = [one for one in self._streams.values() if one.answered and not one.readers]
        for oldest in kept[:-MAX_KEPT]:
            self._forget(oldest)

    def _forget(self, replies: Replies) -> None:
        self._stop_timer(replies)
        self._parked.remove(replies)
        self._streams.pop(replies.stream, None)

    def _stop_timer(self, replies: Replies) -> None:
        if replies.timer is not None:
            replies.timer.cancel()
            replies.timer = None

    # --- events --------------------------------------------------------------------------

    def position(self, event: str) -> tuple[Replies | None, int]:
        """The replies, None for the news, and the number of the event with this id. BadRequest."""
        match = _EVENT.fullmatch(event)
        if match is None:
            raise BadRequest("Last-Event-ID is not the id of an event of this session")
        stream, number = int(match[1]), int(match[2])
        if stream == NEWS:
            return None, number
        replies = self._streams.get(stream)
        if replies is None:
            raise BadRequest(
                "the stream of this Last-Event-ID is over, or was not resumed in time; "
                "send the request again"
            )
        return replies, number

    @property
    def news_event(self) -> str:
        """The id of the last event of the news."""
        return f"{NEWS}-{self._told_count}"

    def told(self, uri: str | None) -> str:
        """A change is about to be told; the id of its event."""
        self._told_count += 1
        self._told.append((self._told_count, uri))
        return self.news_event

    def tell_again(self, after: int | None) -> str:
        """The client has not seen what was told behind the event of this number; None: it has.

        The id of the last event that it has seen.
        """
        if after is None:
            return self.news_event
        for number, uri in self._told:
            if number > after:
                self.news.tell(uri)
        return f"{NEWS}-{after}"
