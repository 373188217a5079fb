"""Reserved room keeps the quota exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from wrkfs.meta.delegations import room
from wrkfs.meta.delegations.room import BYTES_AHEAD, INODES_AHEAD, Room
from wrkfs.types import StatFs

if TYPE_CHECKING:
    import pytest

    from wrkfs.meta.interface.delegations import DelegationStore


class Quota:
    """A volume that has room for what its usage leaves."""

    def __init__(self, limit: int | None, used: int = 0) -> None:
        self.usage = StatFs(used, limit, 0, None)
        self.reserved = (0, 0)

    async def statfs(self) -> StatFs:
        """Return the usage."""
        return self.usage

    async def reserve_room(self, size: int, inodes: int) -> bool:
        """Record the reservation."""
        self.reserved = (size, inodes)
        return True


async def started(quota: Quota) -> Room:
    """Return the room of a session on a volume."""
    made = Room(cast("DelegationStore", quota))
    await made.start()
    return made


async def test_a_volume_without_a_quota_has_room_for_everything() -> None:
    free = await started(Quota(None))
    assert free.take(1 << 40, 1 << 20)
    assert free.left() == (0, 0)


async def test_a_change_needs_reserved_room() -> None:
    quota = Quota(8000)
    limited = await started(quota)
    assert not limited.take(1, 0)
    assert await limited.extend(1, 0)
    assert quota.reserved == (1000, INODES_AHEAD)
    assert limited.take(600, 1)
    assert not limited.take(600, 0)
    assert limited.left() == (400, INODES_AHEAD - 1)


async def test_near_the_limit_the_database_decides() -> None:
    quota = Quota(8000, used=7900)
    limited = await started(quota)
    assert not await limited.extend(100, 0)
    assert quota.reserved == (0, 0)


async def test_a_large_quota_is_reserved_in_parts() -> None:
    limited = await started(Quota(1 << 50))
    await limited.extend(1, 1)
    assert limited.left() == (BYTES_AHEAD, INODES_AHEAD)


async def test_a_reservation_is_given_back_once() -> None:
    quota = Quota(8000)
    limited = await started(quota)
    await limited.extend(1, 0)
    assert await limited.give_back()
    assert quota.reserved == (0, 0)
    assert not await limited.give_back()


async def test_what_frees_room_needs_none() -> None:
    limited = await started(Quota(8000))
    assert limited.take(-5, 0)


async def test_a_quota_that_is_set_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = Quota(None)
    free = await started(quota)
    quota.usage = StatFs(0, 8000, 0, None)
    await free.refresh()
    assert free.take(1, 1)
    monkeypatch.setattr(room, "REFRESH", -1.0)
    await free.refresh()
    assert not free.take(1, 1)


async def test_room_of_a_change_that_was_not_made_is_free_again() -> None:
    limited = await started(Quota(8000))
    await limited.extend(1, 1)
    before = limited.left()
    assert limited.take(600, 1)
    limited.put_back(600, 1)
    assert limited.left() == before
    free = await started(Quota(None))
    free.put_back(600, 1)
    assert free.left() == (0, 0)
