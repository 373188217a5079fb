"""Contract of `MetaStore`, clones and snapshots: every test runs on memory and on PostgreSQL."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.extents import Objects
from tests.harness.volumes.metastore import let_go
from wrkfs import errors
from wrkfs.meta.rules import SNAPSHOTS_INO, SNAPSHOTS_NAME
from wrkfs.types import ROOT_INO, Caller, Commit, Ino, SetAttr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore

ME = Caller(1000, 1001)


@pytest.fixture
def objects() -> Objects:
    """Where the slices of this test are."""
    return Objects()


async def file(
    meta: MetaStore, objects: Objects, parent: Ino, name: bytes, data: bytes, *, small: bool = False
) -> Ino:
    """A closed file with its bytes in the object store, or with `small` in the database."""
    ino = (await meta.create(parent, name, 0o640, ME, exclusive=True))[0].attr.ino
    extent = objects.inline(0, data) if small else objects.stored(0, data)
    await meta.commit(Commit(ino, (extent,), durable=False))
    await let_go(meta, ino)
    return ino


async def put(meta: MetaStore, objects: Objects, ino: Ino, pos: int, data: bytes) -> None:
    await meta.commit(Commit(ino, (objects.stored(pos, data),), durable=False))


async def content(meta: MetaStore, objects: Objects, parent: Ino, *path: bytes) -> bytes:
    for name in path:
        parent = (await meta.lookup(parent, name)).ino
    return objects.read(await meta.file_map(parent))


async def names(meta: MetaStore, ino: Ino) -> list[bytes]:
    return [entry.name for entry in await meta.readdir(ino, 0, 100)]


async def use(meta: MetaStore) -> tuple[int, int]:
    usage = await meta.statfs()
    return usage.bytes_used, usage.inodes_used


async def tree(meta: MetaStore, objects: Objects) -> Ino:
    """A directory with everything that a tree can have; 9 inodes, 11 bytes."""
    top = (await meta.mkdir(ROOT_INO, b"top", 0o751, ME)).ino
    below = (await meta.mkdir(top, b"below", 0o700, ME)).ino
    await file(meta, objects, top, b"stored", b"stored")
    ino = await file(meta, objects, below, b"inline", b"bytes", small=True)
    await meta.link(ino, top, b"second")
    await meta.link(ino, ROOT_INO, b"outside")
    await meta.setxattr(ino, b"user.key", b"value")
    await meta.symlink(top, b"link", b"stored", ME)
    await meta.mknod(below, b"fifo", stat.S_IFIFO | 0o600, 0, ME)
    await meta.mknod(below, b"device", stat.S_IFCHR | 0o600, 0x105, ME)
    sparse = (await meta.create(top, b"sparse", 0o600, ME, exclusive=True))[0].attr.ino
    await meta.setattr(sparse, SetAttr(size=5000))
    await let_go(meta, sparse)
    await meta.mkdir(below, b"empty", 0o700, ME)
    return top


async def test_a_clone_has_everything_that_its_source_has(
    meta: MetaStore, objects: Objects
) -> None:
    top = await tree(meta, objects)
    before = await use(meta)
    assert before[0] == 11

    copy = await meta.copies.clone(top, ROOT_INO, b"copy")

    assert copy == await meta.lookup(ROOT_INO, b"copy")
    assert (copy.mode, copy.uid, copy.nlink) == (stat.S_IFDIR | 0o751, 1000, 3)
    assert await names(meta, copy.ino) == await names(meta, top)
    below = await meta.lookup(copy.ino, b"below")
    assert (below.nlink, await meta.parent(below.ino)) == (3, copy.ino)
    assert await content(meta, objects, copy.ino, b"stored") == b"stored"
    assert await content(meta, objects, below.ino, b"inline") == b"bytes"
    inline = await meta.lookup(below.ino, b"inline")
    assert inline == await meta.lookup(copy.ino, b"second")
    assert inline.nlink == 2
    assert inline.ino != (await meta.lookup(top, b"second")).ino
    assert await meta.getxattr(inline.ino, b"user.key") == b"value"
    assert await meta.readlink((await meta.lookup(copy.ino, b"link")).ino) == b"stored"
    assert stat.S_ISFIFO((await meta.lookup(below.ino, b"fifo")).mode)
    assert (await meta.lookup(below.ino, b"device")).rdev == 0x105
    sparse = await meta.lookup(copy.ino, b"sparse")
    assert (sparse.size, sparse.holes) == (5000, 5000)
    assert await names(meta, (await meta.lookup(below.ino, b"empty")).ino) == []
    source = await meta.lookup(top, b"stored")
    stored = await meta.lookup(copy.ino, b"stored")
    assert (stored.mtime_ns, stored.version) == (source.mtime_ns, source.version)
    assert await use(meta) == (before[0], 2 * before[1])


async def test_source_and_clone_change_alone(meta: MetaStore, objects: Objects) -> None:
    ino = await file(meta, objects, ROOT_INO, b"a", b"0123456789")
    copy = await meta.copies.clone(ino, ROOT_INO, b"b")
    await put(meta, objects, ino, 2, b"AA")
    await put(meta, objects, copy.ino, 8, b"BBB")
    assert await content(meta, objects, ROOT_INO, b"a") == b"01AA456789"
    assert await content(meta, objects, ROOT_INO, b"b") == b"01234567BBB"
    await meta.setattr(ino, SetAttr(size=0))
    assert await content(meta, objects, ROOT_INO, b"b") == b"01234567BBB"
    await meta.unlink(ROOT_INO, b"a")
    assert await content(meta, objects, ROOT_INO, b"b") == b"01234567BBB"


async def test_inline_bytes_live_until_the_last_file_drops_them(
    meta: MetaStore, objects: Objects
) -> None:
    ino = await file(meta, objects, ROOT_INO, b"a", b"bytes", small=True)
    copy = await meta.copies.clone(ino, ROOT_INO, b"b")
    await meta.unlink(ROOT_INO, b"a")
    assert await content(meta, objects, ROOT_INO, b"b") == b"bytes"
    # Small appends of one file are joined, but never with bytes that it has borrowed.
    await meta.commit(Commit(copy.ino, (objects.inline(5, b"+"),), durable=False))
    assert await content(meta, objects, ROOT_INO, b"b") == b"bytes+"
    assert await use(meta) == (6, 1)
    await meta.unlink(ROOT_INO, b"b")
    assert await use(meta) == (0, 0)


async def test_shared_bytes_count_once_whatever_changes(meta: MetaStore, objects: Objects) -> None:
    ino = await file(meta, objects, ROOT_INO, b"a", bytes(100))
    copy = await meta.copies.clone(ino, ROOT_INO, b"b")
    assert await use(meta) == (100, 2)
    await put(meta, objects, copy.ino, 0, bytes(30))
    assert await use(meta) == (130, 2)
    await put(meta, objects, copy.ino, 10, bytes(30))
    assert await use(meta) == (140, 2)
    await meta.setattr(copy.ino, SetAttr(size=90))
    assert await use(meta) == (140, 2)
    await meta.setattr(copy.ino, SetAttr(size=20))
    assert await use(meta) == (120, 2)
    await put(meta, objects, ino, 0, bytes(100))
    # The old slice of 100 bytes is still in the map of the clone, below newer bytes.
    assert await use(meta) == (220, 2)
    await meta.open(copy.ino, truncate=True)
    assert await use(meta) == (100, 2)
    await let_go(meta, copy.ino)


async def test_the_removal_of_the_source_leaves_the_bytes_counted(
    meta: MetaStore, objects: Objects, meta_volume: MetaVolume
) -> None:
    ino = await file(meta, objects, ROOT_INO, b"a", bytes(100))
    await meta.copies.clone(ino, ROOT_INO, b"b")
    await meta.copies.clone(ino, ROOT_INO, b"c")
    await meta.unlink(ROOT_INO, b"a")
    assert await use(meta) == (100, 2)
    await meta.unlink(ROOT_INO, b"b")
    assert await use(meta) == (100, 1)
    assert await meta_volume.freed_slices() == set()
    await meta.unlink(ROOT_INO, b"c")
    assert await use(meta) == (0, 0)
    assert await meta_volume.freed_slices() != set()


async def test_the_trash_counts_nothing_that_a_clone_keeps(
    meta: MetaStore, objects: Objects, meta_volume: MetaVolume
) -> None:
    await meta_volume.keep_trash()
    ino = await file(meta, objects, ROOT_INO, b"a", bytes(100))
    copy = await meta.copies.clone(ino, ROOT_INO, b"b")
    await meta.unlink(ROOT_INO, b"a")
    assert await use(meta) == (100, 1)
    await meta.restore(ino, ROOT_INO, b"a")
    assert await use(meta) == (100, 2)
    await put(meta, objects, copy.ino, 0, bytes(100))
    assert await use(meta) == (200, 2)
    await meta.remove_tree(ROOT_INO, b"a")
    await meta.remove_tree(ROOT_INO, b"b")
    entries = await meta.upkeep.list_trash(None, 10)
    assert {entry.ino for entry in entries} == {ino, copy.ino}
    assert await meta.upkeep.purge_trash(entries[-1].deleted_at, 10) == 2
    assert await use(meta) == (0, 0)


async def test_a_removed_tree_with_a_clone_stays_counted(
    meta: MetaStore, objects: Objects, meta_volume: MetaVolume
) -> None:
    await meta_volume.keep_trash()
    top = await tree(meta, objects)
    await meta.copies.clone(top, ROOT_INO, b"copy")
    await meta.unlink(ROOT_INO, b"outside")
    await meta.remove_tree(ROOT_INO, b"top")
    assert (await use(meta))[0] == 11
    await meta.remove_tree(ROOT_INO, b"copy")
    for _ in range(20):
        last = (await meta.upkeep.list_trash(None, 100))[-1:]
        if not last or not await meta.upkeep.purge_trash(last[0].deleted_at, 100):
            break
    assert await use(meta) == (0, 0)


async def test_a_file_that_is_open_and_removed_counts_until_its_close(
    meta: MetaStore, objects: Objects, meta_volume: MetaVolume
) -> None:
    await meta_volume.keep_trash()
    ino = await file(meta, objects, ROOT_INO, b"a", bytes(100))
    await meta.open(ino)
    await meta.copies.clone(ino, ROOT_INO, b"b")
    await meta.unlink(ROOT_INO, b"a")
    assert await use(meta) == (100, 2)
    await let_go(meta, ino)
    assert await use(meta) == (100, 1)


async def test_a_clone_needs_inodes_and_no_bytes(
    meta: MetaStore, objects: Objects, meta_volume: MetaVolume
) -> None:
    top = await tree(meta, objects)
    used = await use(meta)
    await meta_volume.limit(used[0], 2 * used[1])
    await meta.copies.clone(top, ROOT_INO, b"copy")
    with pytest.raises(errors.QuotaExceeded):
        await meta.copies.clone(top, ROOT_INO, b"another")
    with pytest.raises(errors.QuotaExceeded):
        await meta.copies.create_snapshot(ROOT_INO, b"snap", b"")
    assert await use(meta) == (used[0], 2 * used[1])
    assert await meta.copies.snapshots() == []


async def test_a_clone_takes_only_a_free_name_in_a_directory(
    meta: MetaStore, objects: Objects
) -> None:
    ino = await file(meta, objects, ROOT_INO, b"a", b"a")
    with pytest.raises(errors.Exists):
        await meta.copies.clone(ino, ROOT_INO, b"a")
    with pytest.raises(errors.NotDirectory):
        await meta.copies.clone(ino, ino, b"b")
    with pytest.raises(errors.NotFound):
        await meta.copies.clone(Ino(987654), ROOT_INO, b"b")
    with pytest.raises(errors.NotFound):
        await meta.copies.clone(ino, Ino(987654), b"b")
    with pytest.raises(errors.InvalidArgument):
        await meta.copies.clone(ino, ROOT_INO, b"..")


async def test_a_clone_may_lie_in_its_source(meta: MetaStore, objects: Objects) -> None:
    top = await tree(meta, objects)
    listed = await names(meta, top)
    copy = await meta.copies.clone(top, top, b"copy")
    assert await names(meta, copy.ino) == listed


async def test_a_clone_replaces_what_has_the_name_in_one_step(
    meta: MetaStore, objects: Objects, meta_volume: MetaVolume
) -> None:
    await meta_volume.keep_trash()
    top = await tree(meta, objects)
    old = await meta.mkdir(ROOT_INO, b"old", 0o755, ME)
    await file(meta, objects, old.ino, b"f", b"old bytes")
    nlink = (await meta.getattr(ROOT_INO)).nlink
    copy = await meta.copies.clone(top, ROOT_INO, b"old", replace=True)
    assert (await meta.lookup(ROOT_INO, b"old")).ino == copy.ino
    assert (await meta.getattr(ROOT_INO)).nlink == nlink
    assert {entry.name for entry in await meta.upkeep.list_trash(None, 10)} == {b"old", b"f"}
    single = await meta.lookup(top, b"stored")
    await meta.copies.clone(single.ino, ROOT_INO, b"old", replace=True)
    assert await content(meta, objects, ROOT_INO, b"old") == b"stored"
    await meta.copies.clone(single.ino, ROOT_INO, b"new", replace=True)
    assert await content(meta, objects, ROOT_INO, b"new") == b"stored"


async def test_a_snapshot_stays_as_it_was(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    top = await tree(meta, objects)
    snapshot = await meta.copies.create_snapshot(ROOT_INO, b"monday", b"")
    assert (snapshot.name, snapshot.path, snapshot.inodes, snapshot.bytes) == (
        b"monday",
        b"",
        10,
        11,
    )
    assert await other.copies.snapshots() == [snapshot]
    source = await meta.lookup(top, b"stored")
    await put(meta, objects, source.ino, 0, b"newer")
    await meta.remove_tree(top, b"below")
    home = await other.lookup(ROOT_INO, SNAPSHOTS_NAME)
    assert (home.ino, stat.S_IMODE(home.mode)) == (SNAPSHOTS_INO, 0o555)
    assert await names(other, home.ino) == [b"monday"]
    path = b"monday", b"top", b"stored"
    assert await content(other, objects, home.ino, *path) == b"stored"
    below = b"monday", b"top", b"below", b"inline"
    assert await content(other, objects, home.ino, *below) == b"bytes"
    kept = await other.lookup((await other.lookup(snapshot.ino, b"top")).ino, b"stored")
    assert (kept.mode, kept.ctime_ns) == (source.mode, source.ctime_ns)


async def test_listings_of_the_root_have_no_snapshots(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    await file(meta, objects, ROOT_INO, b"a", b"a")
    assert await names(meta, ROOT_INO) == await names(other, ROOT_INO) == [b"a"]
    with pytest.raises(errors.NotFound):
        await other.lookup(ROOT_INO, SNAPSHOTS_NAME)
    await meta.copies.create_snapshot(ROOT_INO, b"one", b"")
    for session in (meta, other):
        assert await names(session, ROOT_INO) == [b"a"]
        assert (await session.lookup(ROOT_INO, SNAPSHOTS_NAME)).ino == SNAPSHOTS_INO
        assert await names(session, ROOT_INO) == [b"a"]
        assert (await session.getattr(ROOT_INO)).nlink == 3
    again = await meta.copies.create_snapshot(ROOT_INO, b"two", b"")
    assert await names(meta, again.ino) == [b"a"]
    with pytest.raises(errors.NotFound):
        await meta.lookup(again.ino, SNAPSHOTS_NAME)


async def test_nothing_in_a_snapshot_can_change(meta: MetaStore, objects: Objects) -> None:
    await tree(meta, objects)
    snapshot = await meta.copies.create_snapshot(ROOT_INO, b"s", b"")
    top = (await meta.lookup(snapshot.ino, b"top")).ino
    stored = (await meta.lookup(top, b"stored")).ino
    outside = (await meta.lookup(ROOT_INO, b"outside")).ino
    nameless = (await meta.create_unlinked(0o600, ME)).attr.ino
    home = SNAPSHOTS_INO
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: meta.create(top, b"new", 0o600, ME, exclusive=False),
        lambda: meta.mkdir(top, b"new", 0o700, ME),
        lambda: meta.mkdir(home, b"new", 0o700, ME),
        lambda: meta.symlink(top, b"new", b"x", ME),
        lambda: meta.mknod(top, b"new", stat.S_IFIFO | 0o600, 0, ME),
        lambda: meta.link(outside, top, b"new"),
        lambda: meta.unlink(top, b"stored"),
        lambda: meta.rmdir(top, b"below"),
        lambda: meta.rmdir(home, b"s"),
        lambda: meta.remove_tree(home, b"s"),
        lambda: meta.remove_tree(ROOT_INO, SNAPSHOTS_NAME),
        lambda: meta.rename(top, b"stored", top, b"new"),
        lambda: meta.rename(top, b"stored", ROOT_INO, b"new"),
        lambda: meta.rename(ROOT_INO, b"outside", top, b"new"),
        lambda: meta.rename(ROOT_INO, SNAPSHOTS_NAME, ROOT_INO, b"new"),
        lambda: meta.rename(ROOT_INO, b"top", ROOT_INO, SNAPSHOTS_NAME),
        lambda: meta.publish(nameless, top, b"new"),
        lambda: meta.open(stored, truncate=True),
        lambda: meta.commit(Commit(stored, (objects.stored(0, b"x"),))),
        lambda: meta.setattr(stored, SetAttr(mode=0o777)),
        lambda: meta.setattr(stored, SetAttr(size=1)),
        lambda: meta.setattr(home, SetAttr(mode=0o777)),
        lambda: meta.setxattr(stored, b"user.x", b"x"),
        lambda: meta.copies.clone(outside, top, b"new"),
        lambda: meta.copies.clone(outside, ROOT_INO, SNAPSHOTS_NAME, replace=True),
    ]
    before = await meta.getattr(stored)
    for change in changes:
        with pytest.raises(errors.ReadOnly):
            await change()
    with pytest.raises(errors.CrossesDevices):
        await meta.link(stored, ROOT_INO, b"new")
    with pytest.raises(errors.Exists):
        await meta.mkdir(ROOT_INO, SNAPSHOTS_NAME, 0o700, ME)
    await meta.touch({stored: before.atime_ns + 10**9})
    assert await meta.getattr(stored) == before
    await meta.release(nameless)


async def test_a_file_of_a_snapshot_is_read_and_cloned_back(
    meta: MetaStore, objects: Objects
) -> None:
    top = await tree(meta, objects)
    snapshot = await meta.copies.create_snapshot(top, b"s", b"top")
    await meta.remove_tree(ROOT_INO, b"top")
    stored = await meta.lookup(snapshot.ino, b"stored")
    assert objects.read(await meta.open(stored.ino)) == b"stored"
    await let_go(meta, stored.ino)
    back = await meta.copies.clone(snapshot.ino, ROOT_INO, b"top")
    await put(meta, objects, (await meta.lookup(back.ino, b"stored")).ino, 0, b"S")
    assert await content(meta, objects, ROOT_INO, b"top", b"stored") == b"Stored"
    assert await content(meta, objects, snapshot.ino, b"stored") == b"stored"


async def test_a_removed_snapshot_frees_what_only_it_kept(
    meta: MetaStore, objects: Objects, meta_volume: MetaVolume
) -> None:
    await meta_volume.keep_trash()
    top = await tree(meta, objects)
    before = await use(meta)
    await meta.copies.create_snapshot(ROOT_INO, b"s", b"")
    await put(meta, objects, (await meta.lookup(top, b"stored")).ino, 0, b"newer!")
    assert await use(meta) == (before[0] + 6, 2 * before[1] + 2)
    await meta.copies.remove_snapshot(b"s")
    assert await meta.upkeep.list_trash(None, 10) == []
    assert await use(meta) == (before[0], before[1] + 1)
    assert await meta.copies.snapshots() == []
    assert await names(meta, SNAPSHOTS_INO) == []
    with pytest.raises(errors.NotFound):
        await meta.copies.remove_snapshot(b"s")
    await meta.copies.create_snapshot(ROOT_INO, b"s", b"")


async def test_an_open_file_of_a_removed_snapshot_keeps_its_bytes(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    ino = await file(meta, objects, ROOT_INO, b"a", b"bytes")
    snapshot = await meta.copies.create_snapshot(ROOT_INO, b"s", b"")
    await meta.unlink(ROOT_INO, b"a")
    kept = await other.lookup(snapshot.ino, b"a")
    assert kept.ino != ino
    await other.open(kept.ino)
    await meta.copies.remove_snapshot(b"s")
    assert objects.read(await other.file_map(kept.ino)) == b"bytes"
    await let_go(other, kept.ino)
    assert await use(meta) == (0, 1)


async def test_names_of_snapshots_are_checked(meta: MetaStore, objects: Objects) -> None:
    ino = await file(meta, objects, ROOT_INO, b"a", b"a")
    for name in (b"", b".", b".hidden", b"a/b", b"a\0", "ü".encode(), b"x" * 101):
        with pytest.raises(errors.InvalidArgument):
            await meta.copies.create_snapshot(ROOT_INO, name, b"")
    snapshot = await meta.copies.create_snapshot(ino, b"file", b"a")
    with pytest.raises(errors.Exists):
        await meta.copies.create_snapshot(ROOT_INO, b"file", b"")
    with pytest.raises(errors.InvalidArgument):
        await meta.copies.create_snapshot(snapshot.ino, b"again", b"")
    with pytest.raises(errors.NotFound):
        await meta.copies.create_snapshot(Ino(987654), b"again", b"")
    await meta.copies.remove_snapshot(b"file")


async def test_a_drive_with_its_own_entry_of_the_name_has_no_snapshots(
    meta: MetaStore,
) -> None:
    await meta.mkdir(ROOT_INO, SNAPSHOTS_NAME, 0o755, ME)
    with pytest.raises(errors.Busy):
        await meta.copies.create_snapshot(ROOT_INO, b"s", b"")
    assert (await meta.lookup(ROOT_INO, SNAPSHOTS_NAME)).ino != SNAPSHOTS_INO


async def test_a_fenced_session_makes_no_copy(
    meta: MetaStore, other: MetaStore, objects: Objects, meta_volume: MetaVolume
) -> None:
    ino = await file(meta, objects, ROOT_INO, b"a", b"a")
    await meta_volume.fence(meta)
    for copy in (
        lambda: meta.copies.clone(ino, ROOT_INO, b"b"),
        lambda: meta.copies.create_snapshot(ROOT_INO, b"s", b""),
        lambda: meta.copies.remove_snapshot(b"s"),
    ):
        with pytest.raises(errors.Fenced):
            await copy()
    assert await names(other, ROOT_INO) == [b"a"]


async def test_many_names_come_over_with_their_places(meta: MetaStore, objects: Objects) -> None:
    top = (await meta.mkdir(ROOT_INO, b"top", 0o755, ME)).ino
    for number in range(30):
        below = (await meta.mkdir(top, b"d%d" % number, 0o755, ME)).ino
        await file(meta, objects, below, b"f", b"%d" % number, small=bool(number % 2))
    copy = await meta.copies.clone(top, ROOT_INO, b"copy")
    listed = await meta.readdir(copy.ino, 0, 100)
    assert [entry.name for entry in listed] == await names(meta, top)
    rest = await meta.readdir(copy.ino, listed[9].cookie, 100)
    assert rest == listed[10:]
    for number in range(30):
        found = await content(meta, objects, copy.ino, b"d%d" % number, b"f")
        assert found == b"%d" % number


async def test_a_copy_has_every_change_that_another_session_was_answered(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    top = (await other.mkdir(ROOT_INO, b"top", 0o755, ME)).ino
    for number in range(3):
        below = (await other.mkdir(top, b"d%d" % number, 0o755, ME)).ino
        await file(other, objects, below, b"f", b"%d" % number, small=True)
        copy = await meta.copies.clone(top, ROOT_INO, b"copy%d" % number)
        snapshot = await meta.copies.create_snapshot(ROOT_INO, b"s%d" % number, b"")
        for place in (copy.ino, (await meta.lookup(snapshot.ino, b"top")).ino):
            assert await names(meta, place) == [b"d%d" % n for n in range(number + 1)]
            found = await content(meta, objects, place, b"d%d" % number, b"f")
            assert found == b"%d" % number
