"""Whether there is room for one more running box: its owner's limits and the host's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from boxd.boxes.hostlimits import HostLimits
    from boxd.boxes.locks import Locks
    from boxd.boxes.quota import Tier
    from boxd.boxes.sources import Sources
    from boxd.model.box import Box
    from boxd.store.interface import ControlStore


class Admission:
    """Holds no state. `host` None: this host bounds nothing.

    Critical section: between the look at all boxes and the row that makes one more of them awake;
    both stand inside of `room`.
    """

    def __init__(
        self,
        *,
        store: ControlStore,
        tier_of: Callable[[str], Tier],
        host: HostLimits | None,
        sources: Sources,
        locks: Locks,
    ) -> None:
        self._store = store
        self._tier_of = tier_of
        self._host = host
        self._sources = sources
        self._locks = locks

    @asynccontextmanager
    async def room(self, box: Box, *, new: bool, old: Box | None = None) -> AsyncIterator[None]:
        """Nobody else takes room while the context lasts; `new`: the box has no row yet.

        `old` makes room for it. QuotaExceeded names the limit of its owner, or of where that one
        came from, Unavailable the host's.
        """
        async with self._locks.sums():
            tier = self._tier_of(box.owner)
            if new and box.workspace is not None:
                present = await self._store.workspaces(box.owner)
                if box.workspace not in present:
                    tier.check_workspaces(len(present))
            leaving = {box.id} if old is None else {box.id, old.id}
            others = [one for one in await self._store.all_boxes() if one.id not in leaving]
            own = [one for one in others if one.owner == box.owner]
            tier.check_box(own, box, new=new)
            if self._host is not None:
                self._host.check(others, mem_mb=box.mem_mb)
            self._sources.start(box, others, tier)
            yield
