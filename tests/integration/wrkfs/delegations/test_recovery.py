"""Unsent changes survive crashes of their mounts, refusals, full disks and steps of clocks."""

from __future__ import annotations

import asyncio
import errno
import time
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.harness.logs import provoked
from wrkfs.errors import Fenced, NotFound, QuotaExceeded, StorageError
from wrkfs.meta.delegations.delta import Delta
from wrkfs.meta.delegations.journal import Journal, left_journals
from wrkfs.meta.delegations.store import DelegatedMeta
from wrkfs.meta.postgres import sessions
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.interface.delegations import Batch
    from wrkfs.types import Ino

    Mount: TypeAlias = Callable[[], Awaitable[DelegatedMeta]]

ALICE = Caller(1000, 1000)


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """The directory of the journals of this host."""
    return tmp_path / "journals"


@pytest_asyncio.fixture
async def mount(pg_volume: InPostgres, journals: Path) -> AsyncIterator[Mount]:
    """Makes sessions with delegations on one host."""
    made: list[DelegatedMeta] = []

    async def start() -> DelegatedMeta:
        store = PostgresMeta(pg_volume.config, leases=True, delegates=True)
        made.append(DelegatedMeta(store, pg_volume.config.schema, journals))
        await made[-1].start()
        return made[-1]

    yield start
    for meta in made:
        await meta.close()


def inner(meta: DelegatedMeta) -> PostgresMeta:
    """Return the database of a session."""
    store = meta._inner
    assert isinstance(store, PostgresMeta)
    return store


async def dead_with_changes(meta: DelegatedMeta) -> Ino:
    """Make an unsent file `x` in a new directory, and end the session as SIGKILL does."""
    home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    await meta.sync()
    await meta.create(home.ino, b"x", 0o644, ALICE, exclusive=True)
    await meta._flusher.stop()
    assert not meta._flusher.idle
    meta._flusher.close_journal()
    await inner(meta)._session._stop_heartbeat()
    return home.ino


def waiting(meta: DelegatedMeta) -> set[bytes]:
    """Return the names that the session has not begun to send."""
    return set(meta._flusher.delta.names)


async def expire(volume: InPostgres, meta: DelegatedMeta) -> None:
    """Let a session expire."""
    await volume.rows(
        "UPDATE session SET expires_at = now() - interval '1 s', "
        "heartbeat_at = now() - interval '1 day', suspected_at = now() - interval '1 day' "
        "WHERE session_id = $1 RETURNING 1",
        meta.session,
    )


@pytest.mark.promise("D1")
async def test_a_reader_replays_the_journal_of_an_expired_holder_on_its_host(
    mount: Mount, pg_volume: InPostgres, journals: Path
) -> None:
    dead, other = await mount(), await mount()
    home = await dead_with_changes(dead)
    await expire(pg_volume, dead)
    await other.lookup(home, b"x")
    assert [path.name for path in journals.iterdir()] == [
        f"{pg_volume.config.schema}-{other.session}"
    ]


@pytest.mark.promise("D1")
async def test_the_reaper_replays_the_journals_of_its_host_first(
    mount: Mount, pg_volume: InPostgres
) -> None:
    dead, other = await mount(), await mount()
    home = await dead_with_changes(dead)
    await expire(pg_volume, dead)
    await inner(other)._session._reap_sessions()
    await other.lookup(home, b"x")
    assert await pg_volume.broken_invariants() == []


@pytest.mark.promise("D3")
@pytest.mark.parametrize("regular", [False, True])
async def test_a_holder_has_the_lease_time_after_an_outage_of_the_database(
    mount: Mount, pg_volume: InPostgres, tmp_path: Path, regular: bool
) -> None:
    """Only a session whose own heartbeats were regular fences a holder that has expired."""
    holder, other = await mount(), await mount()
    home = await dead_with_changes(holder)
    await expire(pg_volume, holder)
    await pg_volume.rows(
        "UPDATE session SET alive_since = now() - CASE WHEN $2 THEN '1 minute'::interval "
        "ELSE '1 second' END WHERE session_id = $1 RETURNING 1",
        other.session,
        regular,
    )
    links = inner(other)._links
    assert (await links.call("recall_delegations", (other.session, [home], True)))[0][0] != regular
    await links.call("fence_holders", (other.session,))
    store = inner(holder)
    assert (await store.claim(store.session, store.epoch, store.channel) is None) == regular


async def test_a_replay_extends_the_tenure_of_the_dead_session(
    mount: Mount, pg_volume: InPostgres
) -> None:
    """Otherwise a session that waits would fence it in the middle of the replay."""
    dead, other = await mount(), await mount()
    await dead_with_changes(dead)
    await expire(pg_volume, dead)
    store = inner(dead)
    assert await inner(other).claim(store.session, store.epoch, store.channel) is not None
    assert not await inner(other).fence(dead.session)
    assert await inner(other).claim(store.session, store.epoch, "another") is None
    assert await inner(other).claim(store.session, store.epoch + 1, store.channel) is None


async def test_a_mount_does_not_fence_a_session_whose_journal_another_one_replays(
    mount: Mount, pg_volume: InPostgres, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = await mount()
    home = await dead_with_changes(dead)
    monkeypatch.setattr(sessions, "is_dead", lambda _: True)
    ((journal,), _) = left_journals(journals, pg_volume.config.schema)
    await mount()
    store = inner(dead)
    assert await store.claim(store.session, store.epoch, store.channel) is not None
    journal.release()
    monkeypatch.undo()
    await (await mount()).lookup(home, b"x")


async def test_a_fenced_dead_session_does_not_end_the_one_that_replays(
    mount: Mount, pg_volume: InPostgres
) -> None:
    """Both have the same epoch."""
    dead, other = await mount(), await mount()
    home = await other.mkdir(ROOT_INO, b"other", 0o755, ALICE)
    await inner(other).fence(dead.session, force=True)
    with pytest.raises(Fenced):
        await inner(other).apply_for(dead.session, dead.epoch, 9, Delta())
    assert not inner(other).fenced
    await other.mkdir(home.ino, b"more", 0o755, ALICE)
    await other.sync()
    inner(dead).keep_session()


async def test_a_quota_that_ends_within_a_batch_is_exact(
    mount: Mount, pg_volume: InPostgres
) -> None:
    meta = await mount()
    home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    await meta.sync()
    used = (await meta.statfs()).inodes_used
    await pg_volume.limit(None, used + 300)
    await meta.statfs()
    for number in range(300):
        await meta.mknod(home.ino, b"f%d" % number, 0o100644, 0, ALICE)
    with pytest.raises(QuotaExceeded):
        await meta.mknod(home.ino, b"one too many", 0o100644, 0, ALICE)
    await meta.sync()
    assert (await meta.statfs()).inodes_used == used + 300
    await meta.unlink(home.ino, b"f0")
    await meta.sync()
    await meta.mknod(home.ino, b"again", 0o100644, 0, ALICE)
    await meta.sync()
    assert await pg_volume.broken_invariants() == []


async def test_a_refused_batch_is_told_and_the_session_goes_on(
    mount: Mount, pg_volume: InPostgres, journals: Path
) -> None:
    meta = await mount()
    losses: list[bool] = []
    meta.watch(losses.append)
    home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    kept = await meta.mkdir(home.ino, b"kept", 0o755, ALICE)
    await meta.sync()
    await meta.mkdir(kept.ino, b"lost", 0o755, ALICE)
    # A row that no function of the drive writes: the batch no longer fits.
    await pg_volume.rows("UPDATE inode SET ino = -ino WHERE ino = $1 RETURNING 1", kept.ino)
    with provoked("wrkfs.meta.delegations.flusher") as lines, pytest.raises(StorageError):
        await meta.sync()
    await pg_volume.rows("UPDATE inode SET ino = -ino WHERE ino = $1 RETURNING 1", -kept.ino)
    assert "lost changes of 'lost'" in lines[0]
    assert losses == [True]
    assert len(list(journals.glob("lost-*"))) == 1
    with pytest.raises(NotFound):
        await meta.lookup(kept.ino, b"lost")
    meta._grants._not_before.clear()
    await meta.mkdir(kept.ino, b"later", 0o755, ALICE)
    await meta.sync()
    other = await pg_volume.session()
    await other.lookup(kept.ino, b"later")
    assert await pg_volume.broken_invariants() == []


async def test_a_batch_with_the_row_of_a_removed_inode_is_refused(
    mount: Mount, pg_volume: InPostgres
) -> None:
    meta = await mount()
    home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    sub = await meta.mkdir(home.ino, b"sub", 0o755, ALICE)
    await meta.sync()
    await meta.setattr(sub.ino, SetAttr(mode=0o700))
    removed = "UPDATE inode SET nlink = $2 WHERE ino = $1 RETURNING 1"
    await pg_volume.rows(removed, sub.ino, 0)
    with provoked("wrkfs.meta.delegations.flusher"), pytest.raises(StorageError):
        await meta.sync()
    (row,) = await pg_volume.rows(
        "SELECT nlink, mode & 511 mode FROM inode WHERE ino = $1", sub.ino
    )
    assert (row["nlink"], row["mode"]) == (0, 0o755)
    await pg_volume.rows(removed, sub.ino, sub.nlink)


async def test_a_recalled_directory_is_not_decided_here_until_the_recall_is_answered(
    mount: Mount, pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database would grant the delegation that the waiting batch then ends."""
    meta = await mount()
    home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    await meta.readdir(home.ino, 0, 10)
    await meta.sync()
    store, held = inner(meta), asyncio.Event()
    apply = store.apply

    async def late(seq: int, batch: Batch, release: Sequence[Ino]) -> None:
        await held.wait()
        await apply(seq, batch, release)

    monkeypatch.setattr(store, "apply", late)
    meta._grants.recalled([home.ino])
    meta._grants._not_before.clear()
    making = asyncio.create_task(meta.mkdir(home.ino, b"a", 0o755, ALICE))
    await asyncio.sleep(0)
    held.set()
    await making
    await meta.sync()
    other = await pg_volume.session()
    await other.lookup(home.ino, b"a")
    rows = await pg_volume.rows("SELECT 1 FROM delegation WHERE ino = $1", home.ino)
    cached = meta.table.directories.get(home.ino)
    assert bool(rows) == (cached is not None and cached.delegated)


async def test_delegations_come_back_when_the_disk_has_room(
    mount: Mount, pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_write_owner", full)
        with provoked("wrkfs.meta.delegations.store") as lines:
            meta = await mount()
        assert "No space left" in lines[0]
        home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
        await meta.mkdir(home.ino, b"sent at once", 0o755, ALICE)
        assert waiting(meta) == set()
    meta._next_journal = 0.0
    await meta.mkdir(home.ino, b"sent later", 0o755, ALICE)
    assert waiting(meta) == {b"sent later"}
    await meta.sync()
    with monkeypatch.context() as patched, provoked("wrkfs.meta.delegations.flusher"):
        patched.setattr(Journal, "_open", full)
        await meta.mkdir(home.ino, b"a", 0o755, ALICE)
        await meta.sync()
        await meta.mkdir(home.ino, b"b", 0o755, ALICE)
        assert waiting(meta) == set()
    await meta.mkdir(home.ino, b"c", 0o755, ALICE)
    assert waiting(meta) == {b"c"}
    await meta.sync()
    assert len(await (await pg_volume.session()).readdir(home.ino, 0, 100)) == 5


async def test_steps_of_the_clock_change_no_order(
    mount: Mount, pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = await mount()
    home = await dead.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    now, times = time.time_ns(), []
    for number, step in enumerate((0, 86_400, -86_400, 3600, -10 * 86_400)):
        monkeypatch.setattr(time, "time_ns", lambda step=step: now + step * 10**9)
        monkeypatch.setattr(time, "time", lambda step=step: now / 10**9 + step)
        await dead.mkdir(home.ino, b"d%d" % number, 0o755, ALICE)
        await dead.rename(home.ino, b"d%d" % number, home.ino, b"last")
        await dead.rmdir(home.ino, b"last")
        await dead.mkdir(home.ino, b"kept%d" % number, 0o755, ALICE)
        times.append((await dead.getattr(home.ino)).mtime_ns)
        if number == 2:
            await dead.sync()
    assert times == sorted(times)
    await dead._flusher.stop()
    dead._flusher.close_journal()
    await inner(dead)._session._stop_heartbeat()
    other = await mount()
    shown = await other.readdir(home.ino, 0, 100)
    assert [entry.name for entry in shown] == [b"kept%d" % number for number in range(5)]
    assert await pg_volume.broken_invariants() == []


async def test_a_recall_stops_new_delegations_beside_the_recalled_directory(
    mount: Mount, pg_volume: InPostgres
) -> None:
    """A listing of the parent waits for each of them, so it could wait for ever."""
    meta = await mount()
    recalled = await meta.mkdir(ROOT_INO, b"recalled", 0o755, ALICE)
    present = await meta.mkdir(ROOT_INO, b"present", 0o755, ALICE)
    await (await pg_volume.session()).readdir(ROOT_INO, 0, 10)
    beside = await meta.mkdir(ROOT_INO, b"beside", 0o755, ALICE)
    await meta.mkdir(present.ino, b"below", 0o755, ALICE)
    await meta.mkdir(beside.ino, b"below", 0o755, ALICE)
    for directory in (recalled, present, beside):
        assert not meta.table.directories[directory.ino].delegated
    assert waiting(meta) == set()
    meta._grants._not_before.clear()
    later = await meta.mkdir(ROOT_INO, b"later", 0o755, ALICE)
    await meta.sync()
    rows = await pg_volume.rows("SELECT ino FROM delegation WHERE session_id = $1", meta.session)
    assert later.ino in {row[0] for row in rows}
    assert meta.table.directories[later.ino].delegated
