"""A crash of PostgreSQL that undoes answered changes is told, once, to everybody who had them."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, TypeAlias

import pytest
import pytest_asyncio

from tests.doubles.block_store import MemoryBlocks
from tests.harness.logs import provoked
from tests.harness.wait import until
from wrkfs.errors import NotFound, StorageError
from wrkfs.fs import Filesystem
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.harness.servers.cluster import Cluster
    from wrkfs.config import StoreConfig, VolumeConfig

    Connect: TypeAlias = Callable[..., Awaitable[Filesystem]]

ME = Caller(0, 0)


@pytest.fixture
def crashing(cluster: Cluster, no_store: StoreConfig) -> VolumeConfig:
    """A volume in the server that is killed."""
    return cluster.volume(no_store)


@pytest_asyncio.fixture
async def blocks() -> MemoryBlocks:
    """The objects of the volume."""
    return MemoryBlocks()


@pytest_asyncio.fixture
async def connect(crashing: VolumeConfig, blocks: MemoryBlocks) -> AsyncIterator[Connect]:
    """Makes sessions of the volume."""
    made: list[Filesystem] = []

    async def connect(*, leases: bool = False) -> Filesystem:
        store = PostgresMeta(crashing, leases=leases)
        leased = LeasedMeta(store) if leases else None
        await (leased or store).start()
        made.append(Filesystem(store, blocks.attach(), leased=leased))
        return made[-1]

    yield connect
    for fs in made:
        await fs.close()


async def crash(cluster: Cluster) -> None:
    """The power fails, and the server starts again."""
    await asyncio.to_thread(cluster.kill)
    await asyncio.to_thread(cluster.start)


@pytest.mark.promise("D4")
async def test_a_lost_name_is_told_by_every_handle_once(cluster: Cluster, connect: Connect) -> None:
    fs = await connect()
    _, file = await fs.create(ROOT_INO, b"file", 0o600, os.O_RDWR, ME)
    _, other = await fs.create(ROOT_INO, b"other", 0o600, os.O_RDWR, ME)
    await file.fsync()
    before = fs.losses
    await asyncio.to_thread(cluster.hold_back)
    await fs.mkdir(ROOT_INO, b"lost", 0o755, ME)
    # The heart may find out before the next call.
    with provoked("wrkfs.meta.postgres.sessions") as lines:
        await crash(cluster)
        with pytest.raises(StorageError, match="no fsync had covered"):
            await file.fsync()
        assert len(lines) == 1
    await file.fsync()
    with pytest.raises(StorageError, match="no fsync had covered"):
        await other.close()
    with pytest.raises(StorageError, match="no fsync had covered"):
        await fs.sync_names(before)
    await fs.sync_names()
    with pytest.raises(NotFound):
        await fs.lookup(ROOT_INO, b"lost")
    _, after = await fs.create(ROOT_INO, b"after", 0o600, os.O_RDWR, ME)
    await after.close()
    await file.close()


async def test_lost_bytes_are_told_and_not_shown(cluster: Cluster, connect: Connect) -> None:
    fs = await connect()
    _, file = await fs.create(ROOT_INO, b"file", 0o600, os.O_RDWR, ME)
    await file.write(0, b"kept")
    await file.fsync()
    await asyncio.to_thread(cluster.hold_back)
    await file.write(0, b"lost, and longer")
    await until(lambda: not file.file.writer.dirty)
    assert await file.read(0, 100) == b"lost, and longer"
    # The heart may find out before the next call.
    with provoked("wrkfs.meta.postgres.sessions"):
        await crash(cluster)
        assert await file.read(0, 100) == b"kept"
    assert (await fs.getattr(file.ino)).size == 4
    # Only now does an fsync say it: nothing has been told before.
    with pytest.raises(StorageError, match="no fsync had covered"):
        await file.fsync()
    await file.write(0, b"again")
    await file.fsync()
    assert await file.read(0, 100) == b"again"
    await file.close()


@pytest.mark.promise("D1")
async def test_fsync_covers_what_another_session_wrote(cluster: Cluster, connect: Connect) -> None:
    writer, reader = await connect(), await connect()
    _, file = await writer.create(ROOT_INO, b"file", 0o600, os.O_RDWR, ME)
    await file.fsync()
    shown = await reader.open(file.ino, os.O_RDONLY)
    await asyncio.to_thread(cluster.hold_back)
    await file.write(0, b"of another")
    await until(lambda: not file.file.writer.dirty)
    assert await shown.read(0, 20) == b"of another"
    await shown.fsync()
    await crash(cluster)
    assert await shown.read(0, 20) == b"of another"
    await shown.close()
    await file.close()


async def test_versions_that_stepped_back_do_not_mislead_others(
    cluster: Cluster, connect: Connect
) -> None:
    """After the crash another session makes the same version again, with other bytes."""
    writer, reader = await connect(), await connect()
    _, file = await writer.create(ROOT_INO, b"file", 0o600, os.O_RDWR, ME)
    await file.write(0, b"0000")
    await file.fsync()
    shown = await reader.open(file.ino, os.O_RDONLY)
    # Its opening is a change too: lost, it would be told at the end.
    await shown.fsync()
    await asyncio.to_thread(cluster.hold_back)
    await file.write(0, b"1111")
    await until(lambda: not file.file.writer.dirty)
    assert await shown.read(0, 10) == b"1111"
    # The heart may find out before the next call.
    with provoked("wrkfs.meta.postgres.sessions"):
        await crash(cluster)
        third = await connect()
        again = await third.open(file.ino, os.O_RDWR)
        await again.write(0, b"2222")
        await again.fsync()
        assert await shown.read(0, 10) == b"2222"
        assert await file.read(0, 10) == b"2222"
        with pytest.raises(StorageError):
            await file.close()
    await shown.close()
    await again.close()


async def test_an_open_file_stays_after_its_open_was_lost(
    cluster: Cluster, connect: Connect
) -> None:
    first, second = await connect(), await connect()
    _, made = await first.create(ROOT_INO, b"file", 0o600, os.O_RDWR, ME)
    await made.write(0, b"bytes")
    await made.close()
    # The release is not to be lost too: until it is tidied up, the file would stay.
    await first.statfs()
    await first.sync_names()
    await asyncio.to_thread(cluster.hold_back)
    held = await second.open(made.ino, os.O_RDONLY)
    await crash(cluster)
    assert await held.read(0, 10) == b"bytes"
    await first.unlink(ROOT_INO, b"file")
    assert await held.read(0, 10) == b"bytes"
    # No user has lost anything: that the file is open is noted anew.
    await held.close()
    assert second.losses == 0
    use = await second.statfs()
    assert (use.inodes_used, use.bytes_used) == (0, 0)


@pytest.mark.promise("D3")
async def test_nothing_is_told_when_nothing_is_lost(cluster: Cluster, connect: Connect) -> None:
    fs = await connect()
    before = fs.losses
    _, file = await fs.create(ROOT_INO, b"file", 0o600, os.O_RDWR, ME)
    await file.write(0, b"bytes")
    for end in (cluster.kill, cluster.stop, cluster.kill_postmaster, cluster.stop_immediately):
        await fs.setattr(file.ino, SetAttr(mode=0o640))
        await file.fsync()
        await asyncio.to_thread(end)
        await asyncio.to_thread(cluster.start)
        await file.fsync()
        assert await file.read(0, 10) == b"bytes"
    assert fs.losses == before
    # A clean stop writes everything, asynchronous commits too.
    await fs.mkdir(ROOT_INO, b"kept", 0o755, ME)
    await asyncio.to_thread(cluster.stop)
    await asyncio.to_thread(cluster.start)
    await fs.lookup(ROOT_INO, b"kept")
    await file.close()
    assert fs.losses == before


@pytest.mark.promise("D1")
@pytest.mark.parametrize("leases", [False, True])
async def test_names_of_empty_files_stay(cluster: Cluster, connect: Connect, leases: bool) -> None:
    """From the second on they are made durably, and nothing follows when they are closed."""
    first = await connect()
    fs = await connect(leases=leases)
    home = await first.mkdir(ROOT_INO, b"home", 0o755, ME)
    _, file = await fs.create(home.ino, b"0", 0o600, os.O_RDWR, ME)
    await file.close()
    await asyncio.to_thread(cluster.hold_back)
    for name in (b"1", b"2", b"3"):
        await fs.mkdir(home.ino, b"before " + name, 0o755, ME)
        _, file = await fs.create(home.ino, name, 0o600, os.O_RDWR, ME)
        await file.flush()
        await file.close(flushed=True)
    await fs.mkdir(home.ino, b"lost", 0o755, ME)
    assert fs._write_path.expect_empty
    # The heart may find out before the next call.
    with provoked("wrkfs.meta.postgres.sessions"):
        await crash(cluster)
        found = [entry.name for entry in await fs.readdir(home.ino, 0, 100)]
    assert found == [b"0", b"before 1", b"1", b"before 2", b"2", b"before 3", b"3"]


@pytest.mark.promise("D1")
@pytest.mark.parametrize("way", ["flush", "close"])
async def test_the_close_of_a_reader_covers_names(
    cluster: Cluster, connect: Connect, way: str
) -> None:
    """A program that only reads a file, and closes it, may rely on names that it made before."""
    fs = await connect()
    _, old = await fs.create(ROOT_INO, b"old", 0o600, os.O_RDWR, ME)
    await old.close()
    await asyncio.to_thread(cluster.hold_back)
    _, made = await fs.create(ROOT_INO, b"made", 0o600, os.O_RDONLY | os.O_EXCL, ME)
    await (made.flush() if way == "flush" else made.close())
    # Kills and starts the server twice: each change is the newest one when it is lost.
    await crash(cluster)
    await fs.lookup(ROOT_INO, b"made")
    await asyncio.to_thread(cluster.hold_back)
    reader = await fs.open(old.ino, os.O_RDONLY)
    await fs.rename(ROOT_INO, b"old", ROOT_INO, b"new")
    await (reader.flush() if way == "flush" else reader.close())
    await crash(cluster)
    await fs.lookup(ROOT_INO, b"new")
    assert fs.losses == 0
    if way == "flush":
        await made.close()
        await reader.close()


@pytest.mark.promise("D3")
async def test_a_name_that_others_have_seen_may_vanish_and_who_has_nothing_open_learns_nothing(
    cluster: Cluster, connect: Connect
) -> None:
    """What "Known gaps" says: create, rename and link without fsync, and a crash of the server."""
    maker, other = await connect(), await connect()
    _, file = await maker.create(ROOT_INO, b"old", 0o600, os.O_RDWR, ME)
    await file.close()
    _, held = await maker.create(ROOT_INO, b"held", 0o600, os.O_RDWR, ME)
    await held.fsync()
    seen = await other.open(held.ino, os.O_RDONLY)
    await seen.fsync()
    await asyncio.to_thread(cluster.hold_back)
    await maker.rename(ROOT_INO, b"old", ROOT_INO, b"new")
    await maker.link(file.ino, ROOT_INO, b"linked")
    await maker.mkdir(ROOT_INO, b"made", 0o755, ME)
    for name in (b"new", b"linked", b"made"):
        await other.lookup(ROOT_INO, name)
    # The heart may find out before the next call.
    with provoked("wrkfs.meta.postgres.sessions"):
        await crash(cluster)
        for fs in (maker, other):
            await fs.lookup(ROOT_INO, b"old")
            for name in (b"new", b"linked", b"made"):
                with pytest.raises(NotFound):
                    await fs.lookup(ROOT_INO, name)
    # A call that builds on a lost name finds none, and no other call reports the loss.
    with pytest.raises(NotFound):
        await maker.rename(ROOT_INO, b"made", ROOT_INO, b"moved")
    await maker.mkdir(ROOT_INO, b"made", 0o755, ME)
    # What the mount that made them has open tells it; another mount has lost nothing of its own.
    with pytest.raises(StorageError, match="no fsync had covered"):
        await held.close()
    await seen.close()
    assert (maker.losses, other.losses) == (1, 0)
