"""The change feed: who listens for an owner hears what changed, and then looks for itself.

It tells topics, never contents, so that a listener sees what it may see when it looks. What changes
again before a listener comes for it is told once. In memory, without a database; telling never
awaits and never fails, so it may stand beside any change.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FLEET = "fleet"
"""A box came, went, or changed: its state, who is attached, its pin, its deadline."""
ASKS = "asks"
"""A question was asked or answered, or its time is over."""
SURFACES = "surfaces"
"""The list of canvases changed; `surfaces/ID` is told with it, for the one that did."""
ANY_SURFACE = "surfaces/*"
"""More canvases changed than a listener keeps the ids of: any may have."""
MAX_PENDING = 256
"""Topics that are kept for one listener."""


def surface(canvas_id: str) -> str:
    """The topic of one canvas."""
    return f"{SURFACES}/{canvas_id}"


@dataclass(frozen=True, slots=True)
class Change:
    """What changed, and where. `workspace` None: the default one, or no scope.

    `exact`: only who listens in that very scope hears it, not the whole account.
    """

    owner: str
    workspace: str | None
    topics: tuple[str, ...]
    exact: bool = False


class Listener:
    """One who listens, from `Feed.listen` on. `scope` None: to the whole account."""

    def __init__(self, scope: str | None) -> None:
        self._scope = scope
        self._pending: set[str] = set()
        self._heard = asyncio.Event()

    async def next(self) -> frozenset[str]:
        """Waits for a change; all topics that were told since the last call, at least one.

        For one task at a time.
        """
        await self._heard.wait()
        self._heard.clear()
        topics, self._pending = self._pending, set()
        return frozenset(topics)

    def _hear(self, change: Change) -> None:
        if self._scope != change.workspace and (change.exact or self._scope is not None):
            return
        self._pending.update(change.topics)
        if len(self._pending) > MAX_PENDING:
            self._pending = {FLEET, ASKS, SURFACES, ANY_SURFACE}
        self._heard.set()


class Feed:
    """All listeners of this daemon. No method awaits."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}

    @contextmanager
    def listen(self, owner: str, scope: str | None) -> Iterator[Listener]:
        """Hears the changes of an owner, or those in one workspace, while the context lasts."""
        listener = Listener(scope)
        self._listeners.setdefault(owner, set()).add(listener)
        try:
            yield listener
        finally:
            self._listeners[owner].discard(listener)
            if not self._listeners[owner]:
                del self._listeners[owner]

    def tell(self, change: Change) -> None:
        """Lets all know whom it concerns."""
        for listener in self._listeners.get(change.owner, ()):
            listener._hear(change)

    def fleet(self, owner: str, workspace: str | None) -> None:
        """A box in a workspace changed."""
        self.tell(Change(owner, workspace, (FLEET,)))

    def asks(self, owner: str, workspace: str | None) -> None:
        """A question that belongs to a workspace was asked or answered, or its time is over."""
        self.tell(Change(owner, workspace, (ASKS,)))

    def canvas(self, owner: str, scope: str | None, canvas_id: str) -> None:
        """A canvas of a scope was rendered or removed, or its time is over."""
        self.tell(Change(owner, scope, (SURFACES, surface(canvas_id)), exact=True))
