"""Notifications about changed resources: which resources a client watches, and when it is notified.

The client gets a notification 250 ms after a change: one per resource, however often the resource
changes meanwhile. Only `run` awaits. A watch keeps no box awake, and nothing waits for its client.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from boxd.mcp.resources import changed_resources, list_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from boxd.boxes.state.feed import Listener

COALESCE_S = 0.25
MAX_WATCHED = 256
"""Maximum number of resources of one watch."""


class PendingUpdates:
    """Changed resources that a client has not been notified of. Each is queued at most once."""

    def __init__(self) -> None:
        self._pending: dict[str | None, None] = {}
        self._added = asyncio.Event()

    def add(self, uri: str | None) -> None:
        """Add a changed resource; None: the list of resources changed."""
        self._pending[uri] = None
        self._added.set()

    async def next(self) -> str | None:
        """Wait for the oldest resource; remove and return it."""
        while not self._pending:
            self._added.clear()
            await self._added.wait()
        uri = next(iter(self._pending))
        del self._pending[uri]
        return uri


class Watch:
    """The watched resources of one client, or of one subscription."""

    def __init__(
        self, notify: Callable[[str | None], None], *, subscribe_on_read: bool = False
    ) -> None:
        """`notify` gets the URI of a changed resource, or None for a changed list of resources.

        It must not raise. `subscribe_on_read`: a client that reads a resource also watches it.
        """
        self.uris: set[str] = set()
        self.list_changes = False
        """Whether the client is notified of a changed list of resources."""
        self._notify = notify
        self._subscribe_on_read = subscribe_on_read
        self._timers: dict[str | None, asyncio.TimerHandle] = {}

    def add(self, uri: str) -> bool:
        """Watch one more resource; return False if there are too many."""
        if len(self.uris) >= MAX_WATCHED and uri not in self.uris:
            return False
        self.uris.add(uri)
        return True

    @contextmanager
    def reading(self, uri: str) -> Iterator[None]:
        """Start watching a resource before it is read, so that no change is missed.

        If the read fails, the resource is not added.
        """
        already_watched = uri in self.uris
        if self._subscribe_on_read:
            self.add(uri)
        try:
            yield
        except BaseException:
            if not already_watched:
                self.uris.discard(uri)
            raise

    async def run(self, listener: Listener) -> None:
        """Turn the listener's topics into notifications until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                topics = await listener.next()
                changes: set[str | None] = set(changed_resources(topics, self.uris))
                if self.list_changes and list_changed(topics):
                    changes.add(None)
                for uri in changes - self._timers.keys():
                    self._timers[uri] = loop.call_later(COALESCE_S, self._notify_if_watched, uri)
        finally:
            for timer in self._timers.values():
                timer.cancel()

    def _notify_if_watched(self, uri: str | None) -> None:
        del self._timers[uri]
        if uri is None or uri in self.uris:
            self._notify(uri)
