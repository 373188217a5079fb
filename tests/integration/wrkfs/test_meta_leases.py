"""What sessions tell the database of their leases, and what it takes from that."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.harness.wait import DEADLINE
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.meta.postgres import hosts, sessions
from wrkfs.meta.postgres.statements import STATEMENTS
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.postgres.links import Rows
    from wrkfs.types import Ino

ME = Caller(0, 0)


@pytest.fixture
async def holder(pg_volume: InPostgres) -> AsyncIterator[PostgresMeta]:
    """A session that may take leases."""
    meta = PostgresMeta(pg_volume.config, leases=True)
    await meta.start()
    try:
        yield meta
    finally:
        await meta.close()


async def leases(volume: InPostgres, session: int) -> set[Ino]:
    """Directories that a session has leased."""
    found = await volume.rows("SELECT ino FROM lease WHERE session_id = $1", session)
    return {row[0] for row in found}


async def run_of(volume: InPostgres) -> datetime:
    """The present run of the database."""
    found: datetime = (await volume.rows("SELECT taken_at FROM lease WHERE ino = 0"))[0][0]
    return found


async def told(volume: InPostgres, meta: PostgresMeta) -> datetime | None:
    """The run that a session says it knows."""
    query = "SELECT run FROM session WHERE session_id = $1"
    found: datetime | None = (await volume.rows(query, meta.session))[0][0]
    return found


async def test_a_session_is_registered_with_the_run_that_it_knows(
    pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only from its first heartbeat on."""
    monkeypatch.setattr(sessions, "HEARTBEAT", 3600.0)
    meta = PostgresMeta(pg_volume.config, leases=True)
    try:
        for register in (meta.start, meta.rejoin):
            await register()
            assert await told(pg_volume, meta) == await run_of(pg_volume)
    finally:
        await meta.close()


@pytest.mark.promise("V1")
@pytest.mark.parametrize(
    "run", [None, datetime(1999, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)]
)
async def test_after_a_crash_everybody_is_waited_for_who_may_not_know_of_it(
    pg_volume: InPostgres, run: datetime | None
) -> None:
    """Also who has said nothing yet, and whose run began when the server's clock was ahead."""
    meta = await pg_volume.session()
    await pg_volume.rows("SELECT wrkfs.register('mount', 1, 2, 'w', NULL, NULL)")

    async def cached() -> bool:
        found = await pg_volume.rows(STATEMENTS["survey"], meta.session, meta.epoch, None, [])
        return bool(found[0]["cached"])

    assert not await cached()
    await pg_volume.rows("UPDATE session SET run = $1 WHERE channel IS NOT NULL", run)
    assert await cached()
    await pg_volume.rows("UPDATE session SET expires_at = started_at WHERE channel IS NOT NULL")
    assert not await cached()


@pytest.mark.promise("V1")
async def test_a_late_copy_of_giving_back_ends_no_newer_lease(
    pg_volume: InPostgres, holder: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (await holder.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    assert await leases(pg_volume, holder.session) == {made}
    sent: list[tuple[object, ...]] = []
    call = holder._links.call

    async def heard(name: str, args: tuple[object, ...], deadline: float | None = None) -> Rows:
        if name == "give_back":
            sent.append(args)
        return await call(name, args, deadline)

    monkeypatch.setattr(holder._links, "call", heard)
    for ino in (made, ROOT_INO, ROOT_INO):
        assert await holder.take_lease(ino)
        assert await leases(pg_volume, holder.session) == {ino}
        await holder.give_back([ino])
        assert await leases(pg_volume, holder.session) == set()
        assert await holder.take_lease(ino)
        # The network has kept a copy of each.
        for args in sent:
            await pg_volume.rows(STATEMENTS["give_back"], *args)
        assert await leases(pg_volume, holder.session) == {ino}
        await holder.give_back([ino])


@pytest.mark.promise("V1")
async def test_a_lease_that_is_taken_once_more_counts_from_then_on(
    pg_volume: InPostgres, holder: PostgresMeta
) -> None:
    """A row may be left of an earlier taking, whose answer was late; nobody has known of it."""
    assert await holder.take_lease(ROOT_INO)
    late = (holder.session, [ROOT_INO], holder._session.sequence)
    assert await holder.take_lease(ROOT_INO)
    await pg_volume.rows(STATEMENTS["give_back"], *late)
    assert await leases(pg_volume, holder.session) == {ROOT_INO}


async def test_other_sessions_keep_what_one_gives_back(
    pg_volume: InPostgres, holder: PostgresMeta
) -> None:
    other = PostgresMeta(pg_volume.config, leases=True)
    await other.start()
    try:
        assert await holder.take_lease(ROOT_INO)
        assert await other.take_lease(ROOT_INO)
        await other.give_back([ROOT_INO])
        assert await leases(pg_volume, holder.session) == {ROOT_INO}
        assert await leases(pg_volume, other.session) == set()
    finally:
        await other.close()


@pytest.mark.promise("V1")
async def test_a_session_knows_the_new_run_when_it_keeps_nothing_of_the_old_one(
    pg_volume: InPostgres, holder: PostgresMeta
) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def forget() -> None:
        begun.set()
        await done.wait()

    holder._session.forget = forget
    old = await run_of(pg_volume)
    # What a crash does to an unlogged table.
    await pg_volume.rows("TRUNCATE lease")
    connecting = asyncio.create_task(holder._links._connect(20.0))
    async with asyncio.timeout(20):
        await begun.wait()
    new = await run_of(pg_volume)
    assert new != old
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    await holder._session._beat_once()
    assert await told(pg_volume, holder) == old
    begun.clear()
    connecting = asyncio.create_task(holder._links._connect(20.0))
    async with asyncio.timeout(20):
        await begun.wait()
    await holder._session._beat_once()
    assert await told(pg_volume, holder) == old
    done.set()
    (await connecting).connection.terminate()
    assert await told(pg_volume, holder) == new


async def test_sessions_of_dead_processes_are_fenced_at_once(pg_volume: InPostgres) -> None:
    program = (
        "import sys; from wrkfs.meta.postgres.hosts import Witness; made = Witness();"
        " print(made.identity, flush=True); sys.stdin.read()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    identity = (await process.stdout.readline()).decode().strip()
    await pg_volume.rows("SELECT wrkfs.register('mount', 1, 2, 'w', NULL, $1)", identity)
    for alive in (True, False):
        if not alive:
            process.kill()
            await process.communicate()
        meta = PostgresMeta(pg_volume.config, leases=True)
        await meta.start()
        await meta.close()
        query = "SELECT 1 FROM session WHERE process = $1 AND fenced_at IS NULL"
        assert len(await pg_volume.rows(query, identity)) == alive
    (hosts.MEMORY / identity.rpartition("/")[2]).unlink()


@pytest.mark.promise("V1")
@pytest.mark.parametrize("kind", ["empty", "tree"])
async def test_a_lease_taken_while_its_directory_is_removed_stays(
    pg_volume: InPostgres, holder: PostgresMeta, kind: str
) -> None:
    """Its holder may read what is left of a tree, and relies on being asked for it."""
    meta = await pg_volume.session()
    home = (await meta.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    admin = await pg_volume.admin()
    try:
        lock = admin.transaction()
        await lock.start()
        await admin.execute("SELECT 1 FROM dentry WHERE name = 'home' FOR UPDATE")
        arguments = (ROOT_INO, b"home", kind, None, None)
        removing = asyncio.create_task(meta._session.mutate("remove", *arguments))
        waiting = "SELECT 1 FROM pg_locks l WHERE NOT l.granted"
        async with asyncio.timeout(DEADLINE):
            found = await pg_volume.rows(waiting)
            while not found:
                found = await pg_volume.rows(waiting)
        assert await holder.take_lease(home)
        await lock.rollback()
    finally:
        await admin.close()
    await removing
    assert await leases(pg_volume, holder.session) == {home}
    await holder.give_back([home])


@pytest.mark.promise("V1")
async def test_after_sleep_nothing_is_kept(
    pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's time-outs have stood still."""
    dropped: asyncio.Queue[tuple[tuple[Ino, ...], set[Ino]]] = asyncio.Queue()

    async def drop(directories: Sequence[Ino], inos: set[Ino]) -> None:
        dropped.put_nowait((tuple(directories), inos))

    meta = LeasedMeta(PostgresMeta(pg_volume.config, leases=True))
    await meta.start()
    try:
        meta.table.on_drop = drop
        attr = await meta.getattr(ROOT_INO)
        assert meta.table.attr_validity(attr) > 0
        slept = sessions.boottime
        monkeypatch.setattr(sessions, "boottime", lambda: slept() + 1.0)
        async with asyncio.timeout(20):
            assert await dropped.get() == ((ROOT_INO,), {ROOT_INO})
        assert not meta.table.holds(ROOT_INO)
        assert meta.table.attr_validity(attr) == 0
    finally:
        await meta.close()
