"""Contract of `LockStore`: every test runs on memory and on PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.lock_client import LockUser, ranged, whole
from wrkfs import errors
from wrkfs.meta import lock_rules
from wrkfs.types import LOCK_END, ROOT_INO, Caller, HeldLock, Ino, LockMode, LockOwner, LockSpace

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.types import LockRequest

ME = Caller(0, 0)
UN, SH, EX = LockMode.UNLOCK, LockMode.SHARED, LockMode.EXCLUSIVE


@pytest.fixture
async def ino(meta: MetaStore) -> Ino:
    return (await meta.mknod(ROOT_INO, b"f", 0o644, 0, ME)).ino


@pytest.fixture
def here(meta: MetaStore) -> LockUser:
    return LockUser(meta.locks)


@pytest.fixture
def there(other: MetaStore) -> LockUser:
    return LockUser(other.locks)


async def queued(user: LockUser, request: LockRequest) -> asyncio.Task[None]:
    """A task that waits for a lock; its first request has been refused."""
    task = asyncio.create_task(user.wait(request))
    await asyncio.sleep(0.1)
    assert not task.done()
    return task


async def test_a_lock_keeps_another_session_out(here: LockUser, there: LockUser, ino: Ino) -> None:
    assert await here.set(ranged(ino, 1, EX, 10, 19))
    assert not await there.set(ranged(ino, 1, SH, 19, 25))
    assert await there.set(ranged(ino, 1, EX, 20, 25))
    assert await here.set(ranged(ino, 1, UN, 15, 30))
    assert await there.set(ranged(ino, 1, EX, 15, 25))
    assert not await there.set(ranged(ino, 1, EX, 14, 14))


async def test_shared_locks_exist_side_by_side(here: LockUser, there: LockUser, ino: Ino) -> None:
    assert await here.set(ranged(ino, 1, SH))
    assert await there.set(ranged(ino, 1, SH))
    assert not await there.set(ranged(ino, 1, EX))
    assert await here.set(ranged(ino, 1, UN))
    assert await there.set(ranged(ino, 1, EX))


async def test_test_names_a_conflicting_lock(here: LockUser, there: LockUser, ino: Ino) -> None:
    assert await here.set(ranged(ino, 1, EX, 5, 9, pid=77))
    nothing = await there.store.test(ranged(ino, 1, EX, 10, LOCK_END))
    assert nothing is None
    owner = LockOwner(LockSpace.RANGES, 0)
    found = HeldLock(owner, EX, 5, 9, 77)
    assert await there.store.test(ranged(ino, 1, SH)) == (found, False)
    assert await here.store.test(ranged(ino, 2, SH)) == (found, True)
    assert await here.store.test(ranged(ino, 1, SH)) is None


async def test_a_conversion_by_flock_loses_the_old_lock(
    here: LockUser, there: LockUser, ino: Ino
) -> None:
    assert await here.set(whole(ino, 1, SH))
    assert await there.set(whole(ino, 1, SH))
    assert not await here.set(whole(ino, 1, EX))
    assert await there.set(whole(ino, 1, EX))


async def test_owners_with_64_bits_are_told_apart(here: LockUser, ino: Ino) -> None:
    assert await here.set(ranged(ino, (1 << 64) - 1, EX))
    assert not await here.set(ranged(ino, (1 << 63) - 1, EX))
    assert await here.set(ranged(ino, (1 << 64) - 1, UN))
    assert await here.set(ranged(ino, 1 << 63, EX))


async def test_impossible_requests_are_refused(here: LockUser, ino: Ino) -> None:
    for one in (ranged(ino, 1, EX, 5, 4), ranged(ino, 1 << 64, EX), ranged(ino, 1, EX, -1)):
        with pytest.raises(errors.InvalidArgument):
            await here.set(one)


async def test_the_answers_are_those_of_the_rules(
    here: LockUser, there: LockUser, ino: Ino
) -> None:
    """Random requests of four owners in two sessions, of both kinds."""
    draw = random.Random(7)
    held: list[HeldLock] = []
    for _ in range(250):
        user, owner = draw.choice([(here, 1), (here, 2), (there, 3), (there, 4)])
        mode = draw.choice([UN, SH, EX])
        first = draw.randrange(12)
        last = LOCK_END if draw.random() < 0.1 else first + draw.randrange(6)
        one = (
            whole(ino, owner, mode)
            if draw.random() < 0.3
            else ranged(ino, owner, mode, first, last)
        )
        own = lock_rules.of_owner(held, one.owner)
        rest = [lock for lock in held if lock.owner != one.owner]
        free = lock_rules.conflict(held, one) is None
        assert (await user.store.test(one) is None) == free or mode is UN
        assert await user.set(one) == free
        if free:
            held = rest + lock_rules.replaced(own, one)
        elif lock_rules.loses_before_wait(own, one):
            held = rest


async def test_a_session_that_is_alone_receives_a_delegation(
    here: LockUser, there: LockUser, meta_volume: MetaVolume, ino: Ino
) -> None:
    assert await here.set(ranged(ino, 1, EX, 0, 9))
    # A session that receives no recalls gets none.
    assert here.delegated == ({ino} if here.store.can_decide else set())
    assert not await there.set(ranged(ino, 1, EX, 5, 5))
    assert here.recalled[:1] == ([ino] if here.store.can_decide else [])
    assert here.delegated == set()
    # Two sessions use the file now.
    assert await there.set(ranged(ino, 1, EX, 20, 20))
    assert there.delegated == set()


async def test_a_returned_delegation_states_all_locks(
    here: LockUser, there: LockUser, ino: Ino
) -> None:
    assert await here.set(ranged(ino, 1, EX))
    own = [HeldLock(LockOwner(LockSpace.RANGES, owner), EX, owner, owner) for owner in (3, 5)]
    here.locks[ino] = own
    await here.store.give_back(ino, own)
    assert not await there.set(ranged(ino, 1, EX, 5, 5))
    assert await there.set(ranged(ino, 1, EX, 4, 4))


async def test_a_waiting_request_gets_the_lock(here: LockUser, there: LockUser, ino: Ino) -> None:
    assert await here.set(ranged(ino, 1, EX))
    waiter = await queued(there, ranged(ino, 1, EX))
    assert await here.set(ranged(ino, 1, UN, 0, 5))
    await asyncio.sleep(0.1)
    assert not waiter.done()
    assert await here.set(ranged(ino, 1, UN))
    await asyncio.wait_for(waiter, 10)


async def test_requests_are_granted_in_order(here: LockUser, there: LockUser, ino: Ino) -> None:
    assert await here.set(ranged(ino, 1, SH))
    writer = await queued(there, ranged(ino, 1, EX))
    # A reader that is willing to wait queues behind the writer; the owner of a lock does not.
    wait = here.ticket()
    assert not await here.set(ranged(ino, 2, SH), wait)
    assert await here.set(ranged(ino, 1, SH, 0, 9), here.ticket())
    assert await here.set(ranged(ino, 3, SH))
    assert await here.set(ranged(ino, 3, UN))
    assert await here.set(ranged(ino, 1, UN))
    await asyncio.wait_for(writer, 10)
    assert not await here.set(ranged(ino, 2, SH), wait)
    await here.store.cancel(wait.ticket)


async def test_a_canceled_request_keeps_no_other_waiting(
    here: LockUser, there: LockUser, ino: Ino
) -> None:
    assert await here.set(ranged(ino, 1, SH))
    wait = there.ticket()
    assert not await there.set(ranged(ino, 1, EX), wait)
    reader = await queued(here, ranged(ino, 2, SH))
    await there.store.cancel(wait.ticket)
    await asyncio.wait_for(reader, 10)


async def test_processes_that_wait_for_each_other_are_found(
    here: LockUser, there: LockUser, meta: MetaStore, ino: Ino
) -> None:
    second = (await meta.mknod(ROOT_INO, b"g", 0o644, 0, ME)).ino
    assert await here.set(ranged(ino, 1, EX))
    assert await there.set(ranged(second, 1, EX))
    waiter = await queued(here, ranged(second, 1, EX))
    with pytest.raises(errors.Deadlock):
        await there.set(ranged(ino, 1, EX), there.ticket())
    # A wait of an open file closes no circle: another thread may release its lock.
    wait = there.ticket(is_process=False)
    assert not await there.set(ranged(ino, 1, EX), wait)
    await there.store.cancel(wait.ticket)
    assert await there.set(ranged(second, 1, UN))
    await asyncio.wait_for(waiter, 10)


async def test_a_circle_of_three_is_found(here: LockUser, there: LockUser, ino: Ino) -> None:
    """On ranges of one file, with two owners in one of the sessions."""
    assert await here.set(ranged(ino, 1, EX, 1, 1))
    assert await here.set(ranged(ino, 2, EX, 2, 2))
    assert await there.set(ranged(ino, 3, EX, 3, 3))
    first = await queued(here, ranged(ino, 1, EX, 2, 2))
    second = await queued(here, ranged(ino, 2, SH, 3, 3))
    with pytest.raises(errors.Deadlock):
        await there.set(ranged(ino, 3, SH, 1, 1), there.ticket())
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_the_locks_of_a_fenced_session_are_free(
    here: LockUser, there: LockUser, meta_volume: MetaVolume, meta: MetaStore, ino: Ino
) -> None:
    assert await here.set(ranged(ino, 1, EX))
    assert await here.set(whole(ino, 1, EX))
    waiter = await queued(there, ranged(ino, 1, EX))
    await meta_volume.fence(meta)
    await asyncio.wait_for(waiter, 10)
    assert await there.set(whole(ino, 1, EX))
    with pytest.raises(errors.Fenced):
        await here.set(ranged(ino, 2, SH))


async def test_a_delegation_ends_with_its_session(
    here: LockUser, there: LockUser, meta_volume: MetaVolume, meta: MetaStore, ino: Ino
) -> None:
    assert await here.set(ranged(ino, 1, EX))
    await meta_volume.fence(meta)
    assert await there.set(ranged(ino, 1, EX))


async def test_a_session_that_ends_releases_its_locks(
    here: LockUser, there: LockUser, meta: MetaStore, ino: Ino
) -> None:
    assert await here.set(ranged(ino, 1, EX))
    await meta.close()
    assert await there.set(ranged(ino, 1, EX))


async def test_the_list_shows_locks_and_waits(here: LockUser, there: LockUser, ino: Ino) -> None:
    assert await here.set(ranged(ino, 1, EX, 0, 9, pid=7))
    assert await there.set(whole(ino, 1, SH))
    wait = there.ticket()
    assert not await there.set(ranged(ino, 2, SH, 5, 5), wait)
    found = await here.store.listing(10)
    assert [(one.ino, one.space, one.mode, one.first, one.waits) for one in found] == [
        (ino, LockSpace.RANGES, EX, 0, False),
        (ino, LockSpace.WHOLE_FILE, SH, 0, False),
        (ino, LockSpace.RANGES, SH, 5, True),
    ]
    assert found[0].pid == 7
    assert len(await there.store.listing(1)) == 1
    await there.store.cancel(wait.ticket)


async def test_the_list_recalls_delegations(here: LockUser, there: LockUser, ino: Ino) -> None:
    assert await here.set(ranged(ino, 1, EX))
    found = await there.store.listing(10)
    assert [(one.mode, one.last) for one in found] == [(EX, LOCK_END)]
    assert here.delegated == set()
