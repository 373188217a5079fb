"""Changes that a session decides under its write delegations, as other sessions see them."""

from __future__ import annotations

import asyncio
import errno
import stat
from typing import TYPE_CHECKING

import pytest

from tests.harness.logs import provoked
from wrkfs.errors import (
    Exists,
    InvalidArgument,
    IsDirectory,
    NotEmpty,
    NotFound,
    StorageError,
)
from wrkfs.meta.delegations.journal import Journal
from wrkfs.types import ROOT_INO, Caller, Commit, Extent, SetAttr, SliceId

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.delegations.store import DelegatedMeta
    from wrkfs.meta.postgres.links import Rows
    from wrkfs.meta.postgres.store import PostgresMeta
    from wrkfs.types import Ino

ALICE = Caller(1000, 1000)
BACKGROUND = {"heartbeat", "reap", "survey", "reserve", "apply", "sustain_all", "release"}
"""Calls that no caller waits for."""


@pytest.fixture
def calls(store: PostgresMeta, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the statements that the session with delegations sends, without background work."""
    names: list[str] = []
    tell = store._links.tell

    async def recorded(
        name: str, args: tuple[object, ...], deadline: float | None = None
    ) -> tuple[Rows, bool]:
        if name not in BACKGROUND:
            names.append(name)
        return await tell(name, args, deadline)

    monkeypatch.setattr(store._links, "tell", recorded)
    return names


async def written(meta: DelegatedMeta, ino: Ino, data: bytes) -> None:
    """Commit bytes at the start of a file."""
    slice_id = SliceId(await meta.reserve_slices(1))
    extent = Extent(0, slice_id, len(data), b"", data)
    await meta.commit(Commit(ino, (extent,), durable=False))


async def test_changes_in_a_new_directory_need_no_round_trip(
    meta: DelegatedMeta, other: PostgresMeta, calls: list[str], pg_volume: InPostgres
) -> None:
    home = await meta.mkdir(ROOT_INO, b"project", 0o755, ALICE)
    await meta.reserve_slices(16)
    calls.clear()
    below = await meta.mkdir(home.ino, b"src", 0o755, ALICE)
    for number in range(5):
        made, _ = await meta.create(below.ino, b"f%d" % number, 0o644, ALICE, exclusive=True)
        await written(meta, made.attr.ino, b"content %d" % number)
        await meta.setattr(made.attr.ino, SetAttr(mode=0o600, uid=5))
        await meta.release(made.attr.ino)
    await meta.symlink(below.ino, b"link", b"f0", ALICE)
    await meta.unlink(below.ino, b"f1")
    await meta.rename(below.ino, b"f2", home.ino, b"moved")
    await meta.mkdir(below.ino, b"empty", 0o755, ALICE)
    await meta.rmdir(below.ino, b"empty")
    with pytest.raises(Exists):
        await meta.mkdir(below.ino, b"f0", 0o755, ALICE)
    with pytest.raises(NotEmpty):
        await meta.rmdir(home.ino, b"src")
    with pytest.raises(NotFound):
        await meta.unlink(below.ino, b"f1")
    assert calls == []
    there = await other.lookup(home.ino, b"moved")
    assert (there.mode, there.uid, there.size) == (stat.S_IFREG | 0o600, 5, 9)
    shown = await other.readdir(below.ino, 0, 100)
    assert [entry.name for entry in shown] == [b"f0", b"f3", b"f4", b"link"]
    assert (await other.getattr(home.ino)).nlink == 3
    assert await other.readlink((await other.lookup(below.ino, b"link")).ino) == b"f0"
    assert (await other.file_map(there.ino)).refs[0].inline == b"content 2"


async def test_a_reader_elsewhere_sees_each_change(
    meta: DelegatedMeta, other: PostgresMeta
) -> None:
    home = await meta.mkdir(ROOT_INO, b"shared", 0o755, ALICE)
    for number in range(20):
        made, _ = await meta.create(home.ino, b"f%d" % number, 0o644, ALICE, exclusive=True)
        assert (await other.lookup(home.ino, b"f%d" % number)).ino == made.attr.ino
        with pytest.raises(Exists):
            await other.mkdir(home.ino, b"f%d" % number, 0o755, ALICE)
        await meta.unlink(home.ino, b"f%d" % number)
        with pytest.raises(NotFound):
            await other.lookup(home.ino, b"f%d" % number)


async def test_an_existing_directory_is_delegated_with_its_first_change(
    meta: DelegatedMeta, other: PostgresMeta, calls: list[str]
) -> None:
    home = await other.mkdir(ROOT_INO, b"old", 0o755, ALICE)
    await other.mkdir(home.ino, b"sub", 0o755, ALICE)
    await meta.lookup(ROOT_INO, b"old")
    await meta.readdir(home.ino, 0, 100)
    await meta.getattr(home.ino)
    calls.clear()
    await meta.create(home.ino, b"a", 0o644, ALICE, exclusive=True)
    await meta.create(home.ino, b"b", 0o644, ALICE, exclusive=True)
    assert calls == ["delegate"]
    await other.mkdir(home.ino, b"c", 0o755, ALICE)
    shown = await other.readdir(home.ino, 0, 100)
    assert {entry.name for entry in shown} == {b"sub", b"a", b"b", b"c"}


async def test_an_access_time_may_move_back(meta: DelegatedMeta, other: PostgresMeta) -> None:
    home = await meta.mkdir(ROOT_INO, b"times", 0o755, ALICE)
    made, _ = await meta.create(home.ino, b"f", 0o644, ALICE, exclusive=True)
    await meta.sync()
    for ino in (made.attr.ino, home.ino):
        assert (await meta.setattr(ino, SetAttr(atime_ns=5_000, mtime_ns=6_000))).atime_ns == 5_000
        shown = await other.getattr(ino)
        assert (shown.atime_ns, shown.mtime_ns) == (5_000, 6_000)


async def test_a_removed_file_keeps_the_bytes_written_just_before(
    meta: DelegatedMeta, other: PostgresMeta
) -> None:
    home = await meta.mkdir(ROOT_INO, b"kept", 0o755, ALICE)
    made, _ = await meta.create(home.ino, b"f", 0o644, ALICE, exclusive=True)
    ino = made.attr.ino
    await written(meta, ino, b"old")
    await meta.release(ino)
    await meta.sync()
    await other.open(ino)
    meta._grants._not_before.clear()
    await meta.readdir(home.ino, 0, 100)
    await written(meta, ino, b"newer")
    await meta.setattr(ino, SetAttr(mode=0o600))
    await meta.unlink(home.ino, b"f")
    shown = await other.file_map(ino)
    assert (shown.attr.nlink, shown.attr.size) == (0, 5)
    assert shown.attr.mode == stat.S_IFREG | 0o600
    assert shown.refs[-1].inline == b"newer"


@pytest.mark.parametrize("method", ["drop", "keep_lost"])
async def test_a_journal_on_a_failing_disk_ends_no_wait(
    meta: DelegatedMeta, store: PostgresMeta, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def failing(self: Journal, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def misfit(*_: object) -> None:
        raise StorageError("the batch does not fit")

    home = await meta.mkdir(ROOT_INO, b"failing", 0o755, ALICE)
    await meta.sync()
    with provoked("wrkfs.meta.delegations.flusher") as lines:
        monkeypatch.setattr(Journal, method, failing)
        await meta.mkdir(home.ino, b"a", 0o755, ALICE)
        async with asyncio.timeout(10):
            if method == "drop":
                await meta.sync()
            else:
                monkeypatch.setattr(store, "apply", misfit)
                with pytest.raises(StorageError):
                    await meta.sync()
    assert "No space left on device" in lines[0]
    monkeypatch.undo()


async def test_a_burst_is_sent_in_few_batches(
    meta: DelegatedMeta, other: PostgresMeta, pg_volume: InPostgres
) -> None:
    home = await meta.mkdir(ROOT_INO, b"burst", 0o755, ALICE)
    for number in range(500):
        made, _ = await meta.create(home.ino, b"f%d" % number, 0o644, ALICE, exclusive=True)
        await meta.release(made.attr.ino)
    await meta.sync()
    assert len(await other.readdir(home.ino, 0, 1000)) == 500
    await asyncio.gather(*(meta.unlink(home.ino, b"f%d" % n) for n in range(500)))
    await meta.sync()
    assert await other.readdir(home.ino, 0, 1000) == []


async def test_a_removed_directory_is_no_longer_delegated(
    store: PostgresMeta, pg_volume: InPostgres
) -> None:
    await store.start()
    try:
        for name in (b"removed", b"tree", b"replaced", b"moved"):
            await store.mkdir(ROOT_INO, name, 0o755, ALICE)
        assert len(await pg_volume.rows("SELECT 1 FROM delegation")) == 4
        await store.rmdir(ROOT_INO, b"removed")
        assert await pg_volume.broken_invariants() == []
        await store.remove_tree(ROOT_INO, b"tree")
        assert await pg_volume.broken_invariants() == []
        await store.rename(ROOT_INO, b"moved", ROOT_INO, b"replaced")
        assert await pg_volume.broken_invariants() == []
    finally:
        await store.close()


async def test_a_directory_whose_changes_are_durable_needs_no_further_sync(
    meta: DelegatedMeta, other: PostgresMeta
) -> None:
    home = (await other.mkdir(ROOT_INO, b"home", 0o755, ALICE)).ino
    await other.create(home, b"taken", 0o644, ALICE, exclusive=True)
    await meta.readdir(home, 0, 100)
    with pytest.raises(Exists):
        await meta.create(home, b"taken", 0o644, ALICE, exclusive=True)
    assert meta.table.directories[home].delegated
    assert meta._flusher.idle
    assert not meta.is_durable(home), "another session changed it, and nothing was sent since"
    await meta.create(home, b"one", 0o644, ALICE, exclusive=True)
    assert not meta.is_durable(home)
    await meta.create(home, b"two", 0o644, ALICE, exclusive=True)
    assert not meta.is_durable(home)
    await meta.sync()
    assert meta.is_durable(home)
    await meta.create(home, b"three", 0o644, ALICE, exclusive=True)
    assert not meta.is_durable(home)
    await meta.sync()
    await other.create(home, b"four", 0o644, ALICE, exclusive=True)
    assert not meta.is_durable(home), "another session changed it"


async def test_only_files_open_under_a_lease(meta: DelegatedMeta) -> None:
    home = await meta.mkdir(ROOT_INO, b"opened", 0o755, ALICE)
    link = await meta.symlink(home.ino, b"link", b"target", ALICE)
    await meta.readdir(home.ino, 0, 100)
    with pytest.raises(IsDirectory):
        await meta.open(home.ino)
    with pytest.raises(InvalidArgument):
        await meta.open(link.ino)


async def test_a_replacing_rename_keeps_the_cookie(meta: DelegatedMeta) -> None:
    home = await meta.mkdir(ROOT_INO, b"replaced", 0o755, ALICE)
    for name in (b"new", b"old"):
        made, _ = await meta.create(home.ino, name, 0o644, ALICE, exclusive=True)
        await meta.release(made.attr.ino)
    replacing = await meta.rename(home.ino, b"new", home.ino, b"old")
    moving = await meta.rename(home.ino, b"old", home.ino, b"free")
    assert replacing is not None
    assert moving is not None
    assert (replacing.cookie, moving.cookie > 0) == (0, True)


async def test_nothing_is_made_in_a_replaced_directory(
    meta: DelegatedMeta, other: PostgresMeta
) -> None:
    home = await meta.mkdir(ROOT_INO, b"above", 0o755, ALICE)
    await meta.mkdir(home.ino, b"new", 0o755, ALICE)
    old = await meta.mkdir(home.ino, b"old", 0o755, ALICE)
    await meta.rename(home.ino, b"new", home.ino, b"old")
    with pytest.raises(NotFound):
        await meta.readdir(old.ino, 0, 100)
    with pytest.raises(NotFound):
        await meta.create(old.ino, b"f", 0o644, ALICE, exclusive=True)
    await meta.sync()
    assert [entry.name for entry in await other.readdir(home.ino, 0, 100)] == [b"old"]
