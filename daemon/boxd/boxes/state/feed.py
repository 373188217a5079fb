"""The change feed: notifies the listeners of an owner about changes.

The feed carries topics, never contents. Each listener reads the current state itself, with its own
permissions. The feed reports several changes of a topic once if they happen before the listener
wakes. The feed is in memory, without a database. Publishing never awaits and never fails, so any
code may publish.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FLEET = "fleet"
"""A box was created, removed or changed: its state, attachments, pin or deadline."""
ASKS = "asks"
"""A question was asked, was answered or expired."""
SURFACES = "surfaces"
"""The list of canvases changed. The topic `surfaces/ID` names the canvas that did."""
ANY_SURFACE = "surfaces/*"
"""Topic for changes of more canvases than a listener stores ids for. Any may have changed."""
MAX_PENDING = 256
"""Maximum number of pending topics of one listener."""


def surface(canvas_id: str) -> str:
    """Return the topic of one canvas."""
    return f"{SURFACES}/{canvas_id}"


@dataclass(frozen=True, slots=True)
class Change:
    """A change and its place. `workspace` None: the default workspace, or no scope.

    `exact`: only listeners of this scope receive it, not those of the whole account.
    """

    owner: str
    workspace: str | None
    topics: tuple[str, ...]
    exact: bool = False


class Listener:
    """A subscription of `Feed.listen`. `scope` None: to the whole account."""

    def __init__(self, scope: str | None) -> None:
        self._scope = scope
        self._pending: set[str] = set()
        self._pending_event = asyncio.Event()

    async def next(self) -> frozenset[str]:
        """Wait for a change. Returns all topics since the last call, at least one.

        Only one task at a time may call it.
        """
        await self._pending_event.wait()
        self._pending_event.clear()
        topics, self._pending = self._pending, set()
        return frozenset(topics)

    def _receive(self, change: Change) -> None:
        if self._scope != change.workspace and (change.exact or self._scope is not None):
            return
        self._pending.update(change.topics)
        if len(self._pending) > MAX_PENDING:
            self._pending = {FLEET, ASKS, SURFACES, ANY_SURFACE}
        self._pending_event.set()


class Feed:
    """All listeners of this daemon. No method awaits."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}

    @contextmanager
    def listen(self, owner: str, scope: str | None) -> Iterator[Listener]:
        """Subscribe to the changes of an owner, or of one workspace, while the context lasts."""
        listener = Listener(scope)
        self._listeners.setdefault(owner, set()).add(listener)
        try:
            yield listener
        finally:
            self._listeners[owner].discard(listener)
            if not self._listeners[owner]:
                del self._listeners[owner]

    def publish(self, change: Change) -> None:
        """Publish a change to all listeners that it concerns."""
        for listener in self._listeners.get(change.owner, ()):
            listener._receive(change)

    def fleet(self, owner: str, workspace: str | None) -> None:
        """Publish that a box in a workspace changed."""
        self.publish(Change(owner, workspace, (FLEET,)))

    def asks(self, owner: str, workspace: str | None) -> None:
        """Publish that a question of a workspace was asked, was answered or expired."""
        self.publish(Change(owner, workspace, (ASKS,)))

    def canvas(self, owner: str, scope: str | None, canvas_id: str) -> None:
        """Publish that a canvas of a scope was rendered, was removed or expired."""
        self.publish(Change(owner, scope, (SURFACES, surface(canvas_id)), exact=True))
