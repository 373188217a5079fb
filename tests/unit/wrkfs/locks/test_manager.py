"""`LockManager` on the metadata store in memory: two sessions of one volume."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.lock_client import ranged, whole
from tests.unit.wrkfs.drive import create
from wrkfs import errors
from wrkfs.locks import manager
from wrkfs.types import ROOT_INO, LockMode, LockOwner, LockSpace

if TYPE_CHECKING:
    from tests.unit.wrkfs.drive import Drive
    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle
    from wrkfs.types import Ino, LockAnswer, LockRequest, LockWait

UN, SH, EX = LockMode.UNLOCK, LockMode.SHARED, LockMode.EXCLUSIVE
OS_RDWR = 2


class Two:
    """One file, open in two sessions."""

    def __init__(
        self,
        here: Filesystem,
        there: Filesystem,
        mine: FileHandle,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.here, self.there, self.mine = here, there, mine
        self.ino = mine.ino
        self.calls: list[LockRequest] = []
        store = here.locks._store
        original = store.set

        async def counted(request: LockRequest, wait: LockWait | None) -> LockAnswer:
            self.calls.append(request)
            return await original(request, wait)

        monkeypatch.setattr(store, "set", counted)

    async def theirs(self) -> FileHandle:
        """A handle in the other session."""
        attr = await self.there.lookup(ROOT_INO, b"f")
        return await self.there.open(attr.ino, OS_RDWR)


@pytest.fixture
async def two(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> Two:
    here, there = await drive.mount(), await drive.mount()
    return Two(here, there, await create(here, b"f"), monkeypatch)


async def refused(fs: Filesystem, handle: FileHandle, request: LockRequest) -> bool:
    """Whether another owner is in the way."""
    try:
        await fs.locks.set(handle, request)
    except errors.WouldBlock:
        return True
    return False


async def waiting(
    fs: Filesystem, handle: FileHandle, request: LockRequest, interrupted: asyncio.Event
) -> asyncio.Task[None]:
    """A task that waits for a lock."""
    task = asyncio.create_task(fs.locks.set(handle, request, interrupted=interrupted))
    await asyncio.sleep(0.05)
    assert not task.done()
    return task


async def test_only_the_first_lock_of_a_file_asks_the_store(two: Two) -> None:
    for _ in range(5):
        await two.here.locks.set(two.mine, ranged(two.ino, 1, EX, 0, 9))
        await two.here.locks.set(two.mine, ranged(two.ino, 1, UN))
    assert await two.here.locks.test(two.mine, ranged(two.ino, 2, EX)) is None
    assert len(two.calls) == 1


async def test_a_delegation_knows_its_own_conflicts(two: Two) -> None:
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX, 0, 9))
    assert await refused(two.here, two.mine, ranged(two.ino, 2, SH, 9, 9))
    found = await two.here.locks.test(two.mine, ranged(two.ino, 2, SH))
    assert found is not None
    assert (found[0].first, found[0].last, found[1]) == (0, 9, True)
    assert len(two.calls) == 1


async def test_another_session_sees_what_was_written_under_the_lock(two: Two) -> None:
    theirs = await two.theirs()
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    await two.mine.write(0, b"written under the lock")
    await two.here.locks.set(two.mine, ranged(two.ino, 1, UN))
    await two.there.locks.set(theirs, ranged(two.ino, 1, SH))
    assert await theirs.read(0, 100) == b"written under the lock"
    # Now the two sessions share the file, and each unlock commits.
    await two.there.locks.set(theirs, ranged(two.ino, 1, UN))
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    await two.mine.write(0, b"rewritten")
    await two.here.locks.set(two.mine, ranged(two.ino, 1, UN))
    assert (await theirs.read(0, 9)) == b"rewritten"


async def test_a_downgrade_commits_too(two: Two) -> None:
    theirs = await two.theirs()
    await two.here.locks.set(two.mine, ranged(two.ino, 1, SH))
    await two.there.locks.set(theirs, ranged(two.ino, 1, SH))
    await two.there.locks.set(theirs, ranged(two.ino, 1, UN))
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    await two.mine.write(0, b"new")
    await two.here.locks.set(two.mine, ranged(two.ino, 1, SH))
    await two.there.locks.set(theirs, ranged(two.ino, 1, SH))
    assert await theirs.read(0, 3) == b"new"


async def test_pages_are_dropped_before_a_lock_on_changed_bytes(two: Two) -> None:
    changed: list[Ino] = []

    async def on_change(ino: Ino) -> None:
        changed.append(ino)

    theirs = await two.theirs()
    two.there.locks.on_change = on_change
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    await two.mine.write(0, b"a")
    await two.here.locks.set(two.mine, ranged(two.ino, 1, UN))
    await two.there.locks.set(theirs, ranged(two.ino, 1, SH))
    assert changed == [two.ino]
    await two.there.locks.set(theirs, ranged(two.ino, 1, UN))
    await two.there.locks.set(theirs, ranged(two.ino, 1, SH))
    assert changed == [two.ino]


async def test_a_wait_ends_with_the_lock(two: Two) -> None:
    theirs = await two.theirs()
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    task = await waiting(two.there, theirs, ranged(two.ino, 1, EX), asyncio.Event())
    await two.here.locks.set(two.mine, ranged(two.ino, 1, UN))
    await asyncio.wait_for(task, 10)
    assert await refused(two.here, two.mine, ranged(two.ino, 1, SH))


async def test_a_wait_in_one_session_ends_with_the_lock(two: Two) -> None:
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    task = await waiting(two.here, two.mine, ranged(two.ino, 2, EX), asyncio.Event())
    await two.here.locks.set(two.mine, ranged(two.ino, 1, UN))
    await asyncio.wait_for(task, 10)


async def test_a_signal_ends_a_wait(two: Two) -> None:
    theirs, signal = await two.theirs(), asyncio.Event()
    await two.here.locks.set(two.mine, whole(two.ino, 1, SH))
    task = await waiting(two.there, theirs, whole(two.ino, 1, EX), signal)
    signal.set()
    with pytest.raises(errors.Interrupted):
        await task
    # The request has left the queue, so a reader that waits is not behind it.
    second = asyncio.create_task(
        two.here.locks.set(two.mine, whole(two.ino, 2, SH), interrupted=asyncio.Event())
    )
    await asyncio.wait_for(second, 10)


async def test_waits_are_bounded(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "WAITS_MAX", 1)
    signal = asyncio.Event()
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    task = await waiting(two.here, two.mine, ranged(two.ino, 2, EX), signal)
    with pytest.raises(errors.NoLocks):
        await two.here.locks.set(two.mine, ranged(two.ino, 3, EX), interrupted=signal)
    signal.set()
    with pytest.raises(errors.Interrupted):
        await task


async def test_locks_are_bounded(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "LOCKS_MAX", 3)
    for first in (0, 10, 20):
        await two.here.locks.set(two.mine, ranged(two.ino, 1, EX, first, first))
    with pytest.raises(errors.NoLocks):
        await two.here.locks.set(two.mine, ranged(two.ino, 1, EX, 30, 30))
    await two.here.locks.set(two.mine, ranged(two.ino, 1, UN))
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX, 30, 30))


async def test_a_close_by_a_process_releases_its_locks_of_the_file(two: Two) -> None:
    second = await two.here.open(two.ino, OS_RDWR)
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    await two.here.locks.set(second, whole(two.ino, 1, EX))
    await two.here.locks.end_owner(two.ino, LockOwner(LockSpace.RANGES, 2))
    assert await refused(two.here, second, ranged(two.ino, 2, SH))
    await two.here.locks.end_owner(two.ino, LockOwner(LockSpace.RANGES, 1))
    await two.here.locks.set(second, ranged(two.ino, 2, SH))
    assert await refused(two.here, second, whole(two.ino, 2, SH))


async def test_the_end_of_an_open_file_releases_what_it_alone_used(two: Two) -> None:
    second = await two.here.open(two.ino, OS_RDWR)
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX, 0, 0))
    await two.here.locks.set(second, ranged(two.ino, 1, EX, 0, 0))
    await two.here.locks.set(second, ranged(two.ino, 9, EX, 5, 5))
    await two.here.locks.set(second, whole(two.ino, 9, EX))
    await second.close()
    await two.here.locks.end_handle(second)
    assert not await refused(two.here, two.mine, ranged(two.ino, 3, EX, 5, 5))
    assert not await refused(two.here, two.mine, whole(two.ino, 3, EX))
    assert await refused(two.here, two.mine, ranged(two.ino, 3, EX, 0, 0))


async def test_an_idle_delegation_is_returned(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "IDLE", 0.01)
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    await two.mine.close()
    await two.here.locks.end_handle(two.mine)
    await asyncio.sleep(0.1)
    assert two.here.locks._locks == {}


async def test_the_loser_of_a_lock_cannot_go_on(two: Two, drive: Drive) -> None:
    innocent = await two.here.open(two.ino, OS_RDWR)
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    await two.mine.write(0, b"never committed")
    drive.volume.fence(drive.metas[0].session)
    theirs = await two.theirs()
    await two.there.locks.set(theirs, ranged(two.ino, 1, EX))
    with pytest.raises(errors.NoLocks):
        await two.mine.fsync()
    for call in (two.mine.write(0, b"x"), two.mine.read(0, 1), two.mine.fsync()):
        with pytest.raises(errors.NoLocks):
            await call
    with pytest.raises(errors.NoLocks):
        await two.here.locks.set(two.mine, ranged(two.ino, 1, SH))
    await two.here.locks.set(two.mine, ranged(two.ino, 1, UN))
    assert await theirs.read(0, 100) == b""
    with pytest.raises(errors.StorageError):
        await innocent.flush()  # its session has lost bytes of the file
    await two.there.locks.set(theirs, ranged(two.ino, 1, UN))
    await two.here.locks.set(innocent, ranged(two.ino, 1, EX))


async def test_a_fence_is_noticed_by_the_next_lock(two: Two, drive: Drive) -> None:
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX))
    theirs = await two.theirs()
    drive.volume.fence(drive.metas[0].session)
    drive.metas[0].locks.can_decide = False
    with pytest.raises(errors.NoLocks):
        await two.here.locks.set(two.mine, ranged(two.ino, 1, SH, 50, 60))
    with pytest.raises(errors.NoLocks):
        await two.mine.close()
    await two.there.locks.set(theirs, ranged(two.ino, 1, EX))


async def test_without_trust_every_lock_asks_the_store(two: Two, drive: Drive) -> None:
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX, 0, 0))
    drive.metas[0].locks.can_decide = False
    await two.here.locks.set(two.mine, ranged(two.ino, 1, EX, 5, 5))
    await two.here.locks.set(two.mine, ranged(two.ino, 1, UN))
    assert len(two.calls) == 2
    theirs = await two.theirs()
    await two.there.locks.set(theirs, ranged(two.ino, 1, EX))
