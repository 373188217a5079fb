"""Pushes: which resources a client wants to hear of, and when it is told.

What changes is told 250 ms later, once for each resource however often it changed meanwhile. No
method but `run` awaits. Nothing is held awake by it, and nobody waits for a client.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from boxd.mcp.resources import lists_changed, touched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from boxd.boxes.state.feed import Listener

COALESCED_S = 0.25
MAX_WATCHED = 256
"""Resources of one watch."""


class News:
    """Resources of which somebody is to be told that they changed; each is kept once, also while
    nobody comes for them."""

    def __init__(self) -> None:
        self._pending: dict[str | None, None] = {}
        self._some = asyncio.Event()

    def tell(self, uri: str | None) -> None:
        """One has changed; None: which ones there are."""
        self._pending[uri] = None
        self._some.set()

    async def next(self) -> str | None:
        """The next one."""
        while not self._pending:
            self._some.clear()
            await self._some.wait()
        uri = next(iter(self._pending))
        del self._pending[uri]
        return uri


class Watch:
    """One client, or one subscription of one. `tell` is called with the URI of a resource, or None
    for a list of resources that is another one; it must not raise."""

    def __init__(self, tell: Callable[[str | None], None], *, reads: bool = False) -> None:
        """`reads`: who reads a resource wants to hear of it, too."""
        self.uris: set[str] = set()
        self.lists = False
        """Whether it wants to hear that there are other resources."""
        self._tell = tell
        self._reads = reads
        self._due: dict[str | None, asyncio.TimerHandle] = {}

    def add(self, uri: str) -> bool:
        """One more resource; False when there are too many."""
        if len(self.uris) >= MAX_WATCHED and uri not in self.uris:
            return False
        self.uris.add(uri)
        return True

    @contextmanager
    def reading(self, uri: str) -> Iterator[None]:
        """The client reads a resource. What changes meanwhile is told; a failure adds nothing."""
        before = uri in self.uris
        if self._reads:
            self.add(uri)
        try:
            yield
        except BaseException:
            if not before:
                self.uris.discard(uri)
            raise

    async def run(self, listener: Listener) -> None:
        """Tells what it hears, until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                topics = await listener.next()
                news: set[str | None] = set(touched(topics, self.uris))
                if self.lists and lists_changed(topics):
                    news.add(None)
                for uri in news - self._due.keys():
                    self._due[uri] = loop.call_later(COALESCED_S, self._told, uri)
        finally:
            for timer in self._due.values():
                timer.cancel()

    def _told(self, uri: str | None) -> None:
        del self._due[uri]
        if uri is None or uri in self.uris:
            self._tell(uri)
