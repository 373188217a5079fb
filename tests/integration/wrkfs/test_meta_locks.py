"""Locks in PostgreSQL: expired holders, crashes of the database, delegations, hostile rows."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.lock_client import LockUser, ranged, whole
from wrkfs import errors
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.meta.postgres import sessions
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, HeldLock, Ino, LockMode, LockOwner, LockSpace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.volumes.metastore import InPostgres

ME = Caller(0, 0)
UN, SH, EX = LockMode.UNLOCK, LockMode.SHARED, LockMode.EXCLUSIVE
FILE = Ino(4711)
LONG_AGO = timedelta(minutes=10)


class Session:
    """A session with leases, and the user of its locks."""

    def __init__(self, meta: PostgresMeta) -> None:
        self.meta = meta
        self.user = LockUser(meta.locks)


@pytest.fixture
async def two(
    pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Session, Session]]:
    """Two sessions whose heartbeats the test sends."""
    monkeypatch.setattr(sessions, "HEARTBEAT", 3600.0)
    metas = [PostgresMeta(pg_volume.config, leases=True) for _ in range(2)]
    stores = [LeasedMeta(meta) for meta in metas]
    try:
        for store in stores:
            await store.start()
        yield Session(metas[0]), Session(metas[1])
    finally:
        for store in stores:
            await store.close()


async def expire(volume: InPostgres, session: Session) -> None:
    """Move the last heartbeat of a session into the past."""
    await volume.rows(
        "UPDATE session SET expires_at = expires_at - $2::interval WHERE session_id = $1",
        session.meta.session,
        LONG_AGO,
    )


async def has_been_alive(volume: InPostgres, session: Session) -> None:
    """Make a session one whose heartbeats have been regular for long."""
    await volume.rows(
        "UPDATE session SET alive_since = alive_since - $2::interval WHERE session_id = $1",
        session.meta.session,
        LONG_AGO,
    )


async def crash(volume: InPostgres) -> None:
    """Do to the volume's unlogged tables what a crash of the database does."""
    await volume.rows("TRUNCATE lease, recall, lock_file, file_lock, lock_waiter")


async def reconnect(session: Session) -> None:
    """Open a connection, which notices a crash first."""
    (await session.meta._links._connect(20.0)).connection.terminate()


async def test_an_expired_holder_is_fenced_for_a_request(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    here, there = two
    assert await here.user.set(ranged(FILE, 1, EX))
    await here.user.store.give_back(FILE, here.user.locks[FILE])
    await expire(pg_volume, here)
    await has_been_alive(pg_volume, there)
    assert await there.user.set(ranged(FILE, 1, EX))
    with pytest.raises(errors.Fenced):
        await here.meta.mkdir(ROOT_INO, b"late", 0o755, ME)


async def test_an_expired_delegate_is_fenced_for_a_request(
    pg_volume: InPostgres, two: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = two
    assert await here.user.set(ranged(FILE, 1, EX))
    monkeypatch.setattr(here.meta.listener, "on_lock_recall", lambda _: None)
    await expire(pg_volume, here)
    await has_been_alive(pg_volume, there)
    assert await there.user.set(ranged(FILE, 1, EX))
    with pytest.raises(errors.Fenced):
        await here.meta.mkdir(ROOT_INO, b"late", 0o755, ME)


async def test_an_expired_holder_stays_if_no_request_conflicts(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    here, there = two
    assert await here.user.set(ranged(FILE, 1, EX, 0, 9))
    await here.user.store.give_back(FILE, here.user.locks[FILE])
    await expire(pg_volume, here)
    await has_been_alive(pg_volume, there)
    assert await there.user.set(ranged(FILE, 1, EX, 10, 19))
    await here.meta._session._beat_once()
    assert not await there.user.set(ranged(FILE, 1, EX, 5, 19))


async def test_after_an_outage_holders_have_time_for_a_heartbeat(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    """The outage let both sessions expire; the first one back must not fence the other."""
    here, there = two
    assert await here.user.set(ranged(FILE, 1, EX))
    await here.user.store.give_back(FILE, here.user.locks[FILE])
    await has_been_alive(pg_volume, there)
    for session in two:
        await expire(pg_volume, session)
    assert not await there.user.set(ranged(FILE, 1, EX))
    await there.meta._session._beat_once()
    assert not await there.user.set(ranged(FILE, 1, EX))
    await here.meta._session._beat_once()
    await has_been_alive(pg_volume, there)
    assert not await there.user.set(ranged(FILE, 1, EX))
    await here.meta.mkdir(ROOT_INO, b"alive", 0o755, ME)


async def test_after_a_crash_sessions_have_their_locks_again(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    here, there = two
    assert await here.user.set(ranged(FILE, 1, EX, 0, 9))
    assert await here.user.set(whole(FILE, 2, SH))
    await crash(pg_volume)
    await asyncio.gather(reconnect(here), reconnect(there))
    assert here.user.delegated == set()
    assert here.user.lost == []
    assert not await there.user.set(ranged(FILE, 1, SH, 9, 9))
    assert not await there.user.set(whole(FILE, 1, EX))
    assert await there.user.set(ranged(FILE, 1, EX, 10, 10))
    # To notice the same crash twice changes nothing.
    await here.user.store.give_back(FILE, here.user.locks[FILE])
    await reconnect(here)
    assert here.user.lost == []


async def test_a_session_that_notices_a_crash_late_learns_what_it_lost(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    here, there = two
    other = Ino(4712)
    assert await here.user.set(ranged(FILE, 1, EX, 0, 9))
    assert await here.user.set(ranged(other, 1, EX))
    await crash(pg_volume)
    await expire(pg_volume, here)  # so that the other session does not wait for it
    await reconnect(there)
    assert await there.user.set(ranged(FILE, 1, SH, 9, 9))
    await reconnect(here)
    assert here.user.lost == [FILE]
    assert not await there.user.set(ranged(other, 1, SH))


async def test_a_late_copy_of_a_request_changes_nothing(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    here, _ = two
    assert await here.user.set(ranged(FILE, 1, EX))
    assert await here.user.set(ranged(FILE, 1, UN))
    head = await pg_volume.rows(
        "SELECT epoch, slot, op_seq FROM op_result WHERE session_id = $1 AND op_seq > 0"
        " ORDER BY op_seq",
        here.meta.session,
    )
    for sequence in range(1, head[-1]["op_seq"] + 1):
        row = await pg_volume.rows(
            "SELECT errno, flag FROM wrkfs.set_lock($1, $2, $3, $4, $5, 0, 1, 2, 0, 9, 0, NULL,"
            " false)",
            here.meta.session,
            head[-1]["epoch"],
            head[-1]["slot"],
            sequence,
            FILE,
        )
        assert row[0]["errno"] in (0, -1)
    assert await pg_volume.rows("SELECT * FROM file_lock") == []


async def test_rows_of_unused_files_are_deleted(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    here, _ = two
    assert await here.user.set(ranged(FILE, 1, EX))
    await here.user.set(ranged(FILE, 1, UN))
    await pg_volume.rows("SELECT wrkfs.tidy_locks(10)")
    assert len(await pg_volume.rows("SELECT * FROM lock_file")) == 1
    await here.user.store.give_back(FILE, [])
    await pg_volume.rows("SELECT wrkfs.tidy_locks(10)")
    assert await pg_volume.rows("SELECT * FROM lock_file") == []


async def test_rows_of_sessions_that_do_not_exist_hold_nothing_up(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    here, there = two
    await pg_volume.rows(
        "INSERT INTO file_lock VALUES ($1, 0, 999999, 1, 2, 0, 9223372036854775807, 0)", FILE
    )
    await pg_volume.rows("INSERT INTO lock_file VALUES ($1, 999999, 999999, NULL)", FILE)
    assert await here.user.set(ranged(FILE, 1, EX))
    await there.user.store.test(ranged(FILE, 1, EX))
    assert not await there.user.set(ranged(FILE, 1, EX))


async def test_a_row_with_impossible_values_is_reported(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    here, there = two
    assert await here.user.set(ranged(FILE, 1, EX))
    await here.user.store.give_back(FILE, here.user.locks[FILE])
    await pg_volume.rows("UPDATE file_lock SET mode = 7")
    with pytest.raises(errors.Corrupt):
        await there.user.store.test(ranged(FILE, 1, EX))


async def test_notifications_that_mean_nothing_are_ignored(
    pg_volume: InPostgres, two: tuple[Session, Session]
) -> None:
    here, there = two
    listener = here.meta.listener
    assert listener is not None
    for payload in ("l:", "l:x", "w:-", "q:5", ":", "l:" + "9" * 40):
        await pg_volume.rows("SELECT pg_notify($1, $2)", listener.channel, payload)
    held = HeldLock(LockOwner(LockSpace.RANGES, 1), EX, 0, 9)
    here.user.locks[FILE] = [held]
    await here.user.store.give_back(FILE, [held])
    assert not await there.user.set(ranged(FILE, 1, EX))
    assert here.user.recalled == []
