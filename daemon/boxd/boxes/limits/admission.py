"""Admission of running boxes: the limits of the owner, of the source address and of the host."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.boxes.limits.source_addresses import SourceAddresses
from boxd.errors import Forbidden
from boxd.names.words import shown
from boxd.observation import Waiting

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable

    from boxd.boxes.limits.host import HostLimits
    from boxd.boxes.limits.tier_limits import Tier
    from boxd.boxes.state.locks import Locks
    from boxd.model.box import Box
    from boxd.store.interface import ControlStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of boxes.

    `tier_of` returns the tier of an owner; it is called for each check, because an operator can
    change the tier. `host` None: no limit for the boxes of all owners together.
    `source_addresses` counts running boxes by the address they were started from.
    """

    tier_of: Callable[[str], Tier]
    host: HostLimits | None = None
    source_addresses: SourceAddresses = field(default_factory=SourceAddresses)


class Admission:
    """Admits new running boxes within the limits. Its only state counts waiting tasks.

    `global_names`: a name in the default workspace belongs to one owner at a time.

    Critical section: reading all boxes and writing the row that marks another one as awake. Both
    happen inside `room`.
    """

    def __init__(
        self, store: ControlStore, locks: Locks, limits: Limits, *, global_names: bool = False
    ) -> None:
        self._store = store
        self._locks = locks
        self._limits = limits
        self._global_names = global_names
        self.waiting = Waiting()
        """The tasks that wait for their turn."""

    @asynccontextmanager
    async def room(self, box: Box, *, new: bool, old: Box | None = None) -> AsyncIterator[None]:
        """Check that the box may run, and admit no other box while the context lasts.

        `new`: the box has no row yet. `old`: the box that it replaces, which does not count. Raises
        Forbidden if the name of a new box belongs to another owner. Raises QuotaExceeded with the
        limit of the owner or of the source address, and Unavailable with the limit of the host.
        """
        async with self._counted(self._locks.sums()):
            tier = self._limits.tier_of(box.owner)
            if new and box.workspace is not None:
                present = await self._store.workspaces(box.owner)
                if box.workspace not in present:
                    tier.check_workspaces(len(present))
            leaving = {box.id} if old is None else {box.id, old.id}
            others = [one for one in await self._store.all_boxes() if one.id not in leaving]
            if new and self._global_names:
                _check_name(box, others)
            own = [one for one in others if one.owner == box.owner]
            tier.check_box(own, box, new=new)
            if self._limits.host is not None:
                self._limits.host.check(others, mem_mb=box.mem_mb)
            self._limits.source_addresses.start(box, others, tier)
            yield

    @asynccontextmanager
    async def _counted(self, lock: asyncio.Lock) -> AsyncIterator[None]:
        """Hold the lock; count the time before as waiting."""
        with self.waiting:
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _check_name(box: Box, others: list[Box]) -> None:
    """Raise Forbidden if another owner has this name, both boxes being in default workspaces."""
    if box.workspace is not None:
        return
    for other in others:
        if other.workspace is None and other.name == box.name and other.owner != box.owner:
            raise Forbidden(
                f"the name {shown(box.name)} belongs to a box of another key: a box belongs to the "
                f"key's fingerprint. Choose another name, or a workspace: WORKSPACE/{box.name}"
            )
