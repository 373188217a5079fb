"""Expiry, suspicion, fencing and reclaiming of sessions, by the rules in schema.sql."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.harness.logs import provoked
from tests.harness.volumes.extents import Objects
from tests.harness.volumes.metastore import let_go
from wrkfs import errors
from wrkfs.meta.postgres import sessions
from wrkfs.types import ROOT_INO, Caller, Commit, SessionId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.postgres.store import PostgresMeta

ME = Caller(0, 0)
LONG = timedelta(seconds=60)
NO_TIME = timedelta(0)


async def silent_session(volume: InPostgres, *, minutes: int = 10) -> SessionId:
    """A registered session without heartbeat, last heard of long ago."""
    rows = await volume.rows("SELECT wrkfs.register('mount', 1, 2, NULL, NULL, NULL)")
    session = SessionId(rows[0][0])
    await backdate(volume, session, minutes)
    return session


async def backdate(volume: InPostgres, session: int, minutes: int = 10) -> None:
    await volume.rows(
        "UPDATE session SET heartbeat_at = heartbeat_at - $2::interval,"
        " expires_at = expires_at - $2::interval WHERE session_id = $1",
        session,
        timedelta(minutes=minutes),
    )


async def state(volume: InPostgres, session: int) -> tuple[bool, bool] | None:
    """(suspected, fenced), or None when the session is gone."""
    rows = await volume.rows(
        "SELECT suspected_at IS NOT NULL, fenced_at IS NOT NULL FROM session WHERE session_id = $1",
        session,
    )
    return (rows[0][0], rows[0][1]) if rows else None


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns when the condition is true; raises TimeoutError after 20 s."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - rows have no event to wait for
            await asyncio.sleep(0.02)


async def heard_of(volume: InPostgres, session: int) -> bool:
    return await state(volume, session) == (False, False)


async def test_reaping_takes_two_steps(pg_volume: InPostgres) -> None:
    meta = await pg_volume.session()
    dead = await silent_session(pg_volume)
    await meta.reap(LONG, LONG)
    assert await state(pg_volume, dead) == (True, False)
    await meta.reap(LONG, LONG)
    assert await state(pg_volume, dead) == (True, False)
    await meta.reap(LONG, NO_TIME)
    assert await state(pg_volume, dead) is None
    assert await state(pg_volume, meta.session) == (False, False)


async def test_a_heartbeat_clears_a_suspicion(
    pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage for everybody: the first to come back suspects the others, and harms nobody."""
    first, second = await pg_volume.session(), await pg_volume.session()
    back, beat = asyncio.Event(), second._session._beat_once

    async def late() -> None:
        await back.wait()
        await beat()

    monkeypatch.setattr(second._session, "_beat_once", late)
    file = (await second.create(ROOT_INO, b"f", 0o600, ME, exclusive=True))[0].attr.ino
    await backdate(pg_volume, second.session)
    await first.reap(LONG, LONG)
    assert await state(pg_volume, second.session) == (True, False)
    # Expired and suspected, but not fenced: its calls go on.
    await second.commit(Commit(file, (Objects().inline(0, b"x"),)))
    back.set()
    await eventually(lambda: heard_of(pg_volume, second.session))
    await first.reap(LONG, NO_TIME)
    assert await state(pg_volume, second.session) == (False, False)
    assert not second.fenced


async def test_only_an_expired_session_is_fenced_unless_forced(pg_volume: InPostgres) -> None:
    meta, alive = await pg_volume.session(), await pg_volume.session()
    dead = await silent_session(pg_volume)
    assert not await meta.fence(alive.session)
    assert not alive.fenced
    assert await meta.fence(dead)
    assert await meta.fence(alive.session, force=True)
    assert await meta.fence(alive.session)
    with pytest.raises(errors.Fenced):
        await alive.mkdir(ROOT_INO, b"d", 0o755, ME)
    assert alive.fenced


async def test_the_heartbeat_notices_that_the_session_is_fenced(pg_volume: InPostgres) -> None:
    meta, other = await pg_volume.session(), await pg_volume.session()
    assert await meta.fence(other.session, force=True)

    async def noticed() -> bool:
        return other.fenced

    await eventually(noticed)
    with pytest.raises(errors.Fenced):
        await other.reserve_slices(1)
    with pytest.raises(errors.Fenced):
        await other.open(ROOT_INO)


async def test_the_heart_of_a_live_session_outlives_every_error(pg_volume: InPostgres) -> None:
    meta = await pg_volume.session()
    with provoked("wrkfs.meta.postgres.sessions") as lines:
        await pg_volume.rows("ALTER TABLE session RENAME TO hidden")
        async with asyncio.timeout(20):
            while not lines:  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.02)
        await pg_volume.rows("ALTER TABLE hidden RENAME TO session")
        await backdate(pg_volume, meta.session)
        await meta.reap(LONG, LONG)
        await eventually(lambda: heard_of(pg_volume, meta.session))
    assert len(lines) == 1
    await meta.mkdir(ROOT_INO, b"d", 0o755, ME)


async def test_the_heart_waits_for_nothing_that_is_looked_after(
    pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tidied may have to wait for leases of others, for longer than a session lives."""
    monkeypatch.setattr(sessions, "HEARTBEAT", 0.01)
    monkeypatch.setattr(sessions, "REAP_EVERY", 1)
    meta = await pg_volume.session()
    begun = 0
    ended = asyncio.Event()

    async def tidy() -> None:
        nonlocal begun
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    meta._session.tidy = tidy
    wanted = 1

    async def looked_after() -> bool:
        return begun == wanted

    async def beaten() -> bool:
        return await state(pg_volume, meta.session) == (False, False)

    await eventually(looked_after)
    for _ in range(3):
        await pg_volume.rows("UPDATE session SET suspected_at = clock_timestamp()")
        await eventually(beaten)
    assert begun == 1, "one at a time"
    assert not ended.is_set()
    await meta.rejoin()
    assert ended.is_set(), "the next epoch looks after what is its own"
    ended.clear()
    wanted = 2
    await eventually(looked_after)
    await pg_volume.fence(meta)
    async with asyncio.timeout(20):
        await ended.wait()


async def test_reaping_frees_what_a_dead_session_held(pg_volume: InPostgres) -> None:
    meta, dead = await pg_volume.session(), await pg_volume.session()
    objects = Objects()
    files = [(await dead.create_unlinked(0o600, ME)).attr.ino for _ in range(5)]
    for file in files:
        await dead.commit(Commit(file, (objects.inline(0, b"x" * 100),)))
    shared = (await dead.create(ROOT_INO, b"s", 0o600, ME, exclusive=True))[0].attr.ino
    await meta.open(shared)
    await meta.unlink(ROOT_INO, b"s")
    # A tree whose removal was begun and not finished.
    top = (await dead.mkdir(ROOT_INO, b"tree", 0o755, ME)).ino
    for n in range(30):
        await dead.mkdir(top, b"%d" % n, 0o755, ME)
    await dead._session.mutate("remove", ROOT_INO, b"tree", "tree", None, None)
    assert (await meta.statfs()).inodes_used == 5 + 1 + 31
    assert await meta.fence(dead.session, force=True)
    use = await meta.statfs()
    assert (use.inodes_used, use.bytes_used) == (1, 0)
    assert await state(pg_volume, dead.session) is None
    assert (await meta.getattr(shared)).nlink == 0
    await let_go(meta, shared)


async def test_a_fence_waits_for_the_call_in_flight(pg_volume: InPostgres) -> None:
    """After `fence` returned, nothing of the fenced session appears any more."""
    meta, other = await pg_volume.session(), await pg_volume.session()
    blocker = await pg_volume.admin()
    try:
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("SELECT 1 FROM inode WHERE ino = 1 FOR UPDATE")
        making = asyncio.create_task(other.mkdir(ROOT_INO, b"late", 0o755, ME))
        await lock_waiters(pg_volume, 1)
        fencing = asyncio.create_task(meta.fence(other.session, force=True))
        await lock_waiters(pg_volume, 2)
        assert not fencing.done()
        await transaction.rollback()
        await making
        assert await fencing
    finally:
        await blocker.close()
    await meta.lookup(ROOT_INO, b"late")


async def lock_waiters(volume: InPostgres, count: int) -> None:
    """Waits until so many of the volume's backends wait for a lock."""

    async def waiting() -> bool:
        rows = await volume.rows(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND wait_event_type = 'Lock'",
            volume.schema,
        )
        return bool(rows[0][0] >= count)

    await eventually(waiting)


async def test_a_closed_session_leaves_no_rows(pg_volume: InPostgres) -> None:
    meta: PostgresMeta = await pg_volume.session()
    await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=True)
    await meta.close()
    assert await pg_volume.rows("TABLE session") == []
    assert await pg_volume.rows("TABLE op_result") == []
    assert await pg_volume.rows("TABLE sustained") == []
    (use,) = await pg_volume.rows("SELECT bytes, inodes FROM usage")
    assert tuple(use) == (0, 1)


async def waiting(volume: InPostgres) -> int:
    """Calls in the volume that wait for a lock."""
    rows = await volume.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND wait_event_type = 'Lock'",
        volume.schema,
    )
    return int(rows[0][0])


@pytest.mark.parametrize("tree", [False, True])
async def test_two_that_reclaim_at_once_book_once(pg_volume: InPostgres, *, tree: bool) -> None:
    """Every session looks after those that are gone. What the trash keeps stays there."""
    await pg_volume.keep_trash()
    dead, first, second = [await pg_volume.session() for _ in range(3)]
    before = await first.statfs()
    home = (await first.mkdir(ROOT_INO, b"d", 0o755, ME)).ino if tree else ROOT_INO
    file = (await dead.create(home, b"f", 0o600, ME, exclusive=True))[0].attr.ino
    await dead.commit(Commit(file, (Objects().inline(0, b"12345"),)))
    await first.unlink(home, b"f")
    if tree:
        await let_go(dead, file)
        await dead._session.mutate("remove", ROOT_INO, b"d", "tree", None, None)
    await pg_volume.rows("SELECT wrkfs.fence($1, true)", dead.session)
    admin = await pg_volume.admin()
    try:
        await admin.execute("BEGIN")
        held = home if tree else file
        await admin.execute("SELECT FROM inode WHERE ino = $1 FOR NO KEY UPDATE", held)
        calls = [asyncio.create_task(one._session.reclaim(dead.session)) for one in (first, second)]

        async def both_wait() -> bool:
            return await waiting(pg_volume) == len(calls)

        await eventually(both_wait)
        await admin.execute("ROLLBACK")
        await asyncio.gather(*calls)
    finally:
        await admin.close()
    assert await first.statfs() == before
