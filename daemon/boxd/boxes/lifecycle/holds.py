"""Holds: how long a caller keeps a box awake, and how a hold ends early.

The daemon registers a hold as soon as a caller requests a box. So revoking its credential also ends
a request that still waits for the box. It counts for the box from the moment the box runs.

Critical section: `count` runs under the lock of the box. Releasing a hold does not await; the
removal of an ephemeral box afterwards checks again under the lock that nothing holds the box.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.boxes.presence.attachments import PROXIED, Hold
from boxd.boxes.presence.expiry import ending
from boxd.boxes.presence.oom import OomCounter
from boxd.errors import Confidential, Conflict, InvalidKey
from boxd.observation import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from boxd.boxes.lifecycle.changes import Changes
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.presence.expiry import Expiry
    from boxd.boxes.state.requests import BoxRequest
    from boxd.errors import BoxdError
    from boxd.model.box import Box
    from boxd.observation import Observer
    from boxd.tasks import BackgroundTasks
    from boxd.tunnel.channel import Tunnel


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """A request to hold a running box.

    `target` is an existing box, or a request for one that the daemon creates if it is missing.
    `why` is the reason that `ls` shows, such as "shell". `key_id` is the id of the API key or share
    that the caller used; revoking it ends the hold. `expiry` is the end of the caller's credential.
    `relay_key` is the public key of a client of the box's own SSH server; None for all other ways
    in. With a relay key a new box is confidential.
    """

    target: BoxRequest | Box
    why: str
    key_id: str | None
    expiry: Expiry | None = None
    relay_key: str | None = None

    @property
    def owner(self) -> str:
        """The owner of the box."""
        return self.target.owner


@dataclass(frozen=True, slots=True)
class Attachment:
    """A running box that a hold keeps awake, and the tunnel to its agent.

    Sessions and commands that start through it get the variables of `env`. Variables that the
    client sets take precedence.
    """

    box: Box
    tunnel: Tunnel
    hold: Hold
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    oom: OomCounter | None = field(default=None, repr=False)
    observer: Observer = UNOBSERVED

    @property
    def lost(self) -> str:
        """Why the tunnel ended before the work in it was done."""
        return self.hold.loss or "the connection to the box was lost"


class Holds:
    """Registers, counts and releases holds. `tasks` outlive their callers."""

    def __init__(
        self,
        collaborators: Collaborators,
        *,
        changes: Changes,
        tasks: BackgroundTasks,
    ) -> None:
        self._observer = collaborators.observer
        self._clock = collaborators.clock
        self._store = collaborators.store
        self._assembly = collaborators.assembly
        self._locks = collaborators.locks
        self._activity = collaborators.activity
        self._attachments = collaborators.attachments
        self._timers = collaborators.timers
        self._changes = changes
        self._tasks = tasks

    def count(self, hold: Hold, box: Box) -> None:
        """Count a hold for a box; its lock is held."""
        hold.box_id, hold.workspace = box.id, box.workspace
        self._attachments.add(hold)

    @asynccontextmanager
    async def revocable(self, hold: Hold, expiry: Expiry | None) -> AsyncIterator[None]:
        """Register a hold while the context lasts.

        Raises InvalidKey or Forbidden inside the context when the hold is revoked or its credential
        expires.
        """
        task = asyncio.current_task()
        reason: BoxdError | None = None

        def end(error: BoxdError) -> None:
            nonlocal reason
            if task is not None and reason is None:
                reason = error
                task.cancel()

        hold.end = end
        self._attachments.expect(hold)
        try:
            with ending(expiry, self._clock, lambda text: end(InvalidKey(text))):
                yield
        except asyncio.CancelledError:
            # Any other cancellation of the same task takes precedence over the revocation.
            if reason is not None and task is not None and task.uncancel() == 0:
                raise reason from None
            raise
        finally:
            hold.end = None
            self._attachments.finish(hold)

    @asynccontextmanager
    async def attachment(self, box: Box, hold: Hold) -> AsyncIterator[Attachment]:
        """Yield the attachment of a counted hold; release the hold when the context ends."""
        try:
            tunnel = await self._assembly.tunnels.get(box.id)
            oom = OomCounter(self._assembly.backend, box)
            yield Attachment(box, tunnel, hold, oom=oom, observer=self._observer)
        finally:
            self.release(hold, box)

    def release(self, hold: Hold, box: Box) -> None:
        """Stop counting a hold. The last one of an ephemeral box starts its removal."""
        if self._attachments.remove(hold) > 0:
            return
        if self._timers.knows(box.id):
            self._activity.left(box.id)
            if hold.why != PROXIED:
                self._activity.worked_in(box.id)
        if box.ephemeral:
            self._tasks.start(self._remove_unheld(box), name=f"remove box {box.id}")

    async def _remove_unheld(self, box: Box) -> None:
        async with self._locks.box(box):
            unheld = self._attachments.count(box.id) == 0
            if unheld and await self._store.box(box.id) is not None:
                await self._changes.destroy(box)


def check_way_in(box: Box, hold: Hold | None, relay_key: str | None) -> None:
    """Check that a hold uses the permitted way to the box.

    A confidential box accepts only connections through its own SSH server. Any other box cannot
    become confidential later. Raises Confidential or Conflict.
    """
    if hold is None:
        return
    if box.confidential and relay_key is None:
        raise Confidential(f"box {box.ref} is confidential: connect with {box.relayed}")
    if relay_key is not None and not box.confidential:
        raise Conflict(f"box {box.ref} is not confidential; use a new name")
