"""The memory and snapshot operations of a backend that supports neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import NotFound, Unsupported

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.backends.interface import BoxPlan


class WithoutMemory:
    """Rejects the operations with `why_no_memory`, a line for users, and has no snapshots."""

    why_no_memory: str

    async def freeze(self, box_id: str) -> None:
        """Raise Unsupported."""
        raise self._unable(box_id)

    async def save_memory(self, box_id: str) -> None:
        """Raise Unsupported."""
        raise self._unable(box_id)

    async def thaw(self, box_id: str) -> None:
        """Raise Unsupported."""
        raise self._unable(box_id)

    async def resume(self, box_id: str, drive: Path | None) -> None:
        """Raise Unsupported."""
        del drive
        raise self._unable(box_id)

    async def discard_memory(self, box_id: str) -> None:
        """Do nothing: no box has memory on the disk."""

    async def snapshot(
        self, box_id: str, snapshot_id: str, *, lasting: bool = True, memory: bool = True
    ) -> None:
        """Raise Unsupported."""
        del snapshot_id, lasting, memory
        raise self._unable(box_id)

    async def snapshot_bytes(self, snapshot_id: str) -> int:
        """Raise NotFound."""
        raise NotFound(f"there is no snapshot {snapshot_id}")

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Do nothing: there are no snapshots."""

    async def snapshots(self) -> tuple[str, ...]:
        """Return nothing: there are no snapshots."""
        return ()

    async def restore_snapshot(self, box_id: str, snapshot_id: str) -> None:
        """Raise NotFound."""
        del box_id
        raise NotFound(f"there is no snapshot {snapshot_id}")

    async def rename(self, box_id: str, hostname: str) -> None:
        """Raise Unsupported."""
        del hostname
        raise self._unable(box_id)

    async def clone(self, plan: BoxPlan, snapshot_id: str) -> None:
        """Raise NotFound."""
        del plan
        raise NotFound(f"there is no snapshot {snapshot_id}")

    def _unable(self, box_id: str) -> Unsupported:
        del box_id
        return Unsupported(self.why_no_memory)
