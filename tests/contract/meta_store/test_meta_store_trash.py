"""Contract of `MetaStore`, trash: every test runs on memory and on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.extents import Objects
from tests.harness.volumes.metastore import let_go
from wrkfs import errors
from wrkfs.types import ROOT_INO, Caller, Commit, Ino, SetAttr

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.types import TrashEntry

ME = Caller(1000, 1001)


@pytest.fixture
def objects() -> Objects:
    """Where the slices of this test are."""
    return Objects()


@pytest.fixture
async def meta(meta_volume: MetaVolume) -> MetaStore:
    """A session on a volume with trash."""
    await meta_volume.keep_trash()
    return await meta_volume.session()


async def file(
    meta: MetaStore, objects: Objects, name: bytes, data: bytes, parent: Ino = ROOT_INO
) -> Ino:
    """A closed file with bytes in the object store."""
    ino = (await meta.create(parent, name, 0o640, ME, exclusive=True))[0].attr.ino
    if data:
        await meta.commit(Commit(ino, (objects.stored(0, data),), durable=False))
    await let_go(meta, ino)
    return ino


async def names(meta: MetaStore) -> list[bytes]:
    """Names in the trash, the oldest first."""
    return [entry.name for entry in await meta.upkeep.list_trash(None, 100)]


async def use(meta: MetaStore) -> tuple[int, int]:
    found = await meta.statfs()
    return found.bytes_used, found.inodes_used


async def test_a_removed_file_waits_in_the_trash_and_comes_back(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await file(meta, objects, b"f", b"hello")
    before = await meta.getattr(ino)
    await meta.unlink(ROOT_INO, b"f")
    assert await use(meta) == (0, 0)
    assert await meta_volume.freed_slices() == set()
    (entry,) = await other.upkeep.list_trash(None, 10)
    assert (entry.ino, entry.parent, entry.name) == (ino, ROOT_INO, b"f")
    assert (entry.mode, entry.uid, entry.gid) == (before.mode, 1000, 1001)
    assert (entry.size, entry.mtime_ns) == (5, before.mtime_ns)
    back = await other.restore(ino, ROOT_INO, b"again")
    assert (back.ino, back.nlink, back.mode, back.size) == (ino, 1, before.mode, 5)
    assert back.mtime_ns == before.mtime_ns
    assert objects.read(await meta.open((await meta.lookup(ROOT_INO, b"again")).ino)) == b"hello"
    assert await use(meta) == (5, 1)
    assert await names(meta) == []


async def test_what_is_in_the_trash_is_gone_for_every_call(
    meta: MetaStore, objects: Objects
) -> None:
    ino = await file(meta, objects, b"f", b"hello")
    link = (await meta.symlink(ROOT_INO, b"l", b"target", ME)).ino
    await meta.unlink(ROOT_INO, b"f")
    await meta.unlink(ROOT_INO, b"l")
    # getattr and open answer for some seconds more: see test_meta_store_replaced.py.
    for call in (
        meta.file_map(ino),
        meta.setattr(ino, SetAttr(size=0)),
        meta.setxattr(ino, b"user.a", b"1"),
        meta.getxattr(ino, b"user.a"),
        meta.listxattr(ino),
        meta.link(ino, ROOT_INO, b"g"),
        meta.publish(ino, ROOT_INO, b"g"),
        meta.readlink(link),
    ):
        with pytest.raises(errors.NotFound):
            await call
    with pytest.raises(errors.Stale):
        await meta.commit(Commit(ino, (objects.stored(0, b"x"),)))
    assert await use(meta) == (0, 0)


async def test_an_open_file_is_counted_until_its_last_close(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await file(meta, objects, b"f", b"hello")
    await meta.open(ino)
    await other.open(ino)
    await meta.unlink(ROOT_INO, b"f")
    assert await use(meta) == (5, 1)
    await meta.commit(Commit(ino, (objects.stored(5, b" world"),)))
    assert objects.read(await other.file_map(ino)) == b"hello world"
    await let_go(meta, ino)
    assert await use(meta) == (11, 1)
    await let_go(other, ino)
    assert await use(meta) == (0, 0)
    assert [entry.size for entry in await meta.upkeep.list_trash(None, 10)] == [11]
    assert await meta_volume.freed_slices() == set()
    assert (await meta.restore(ino, ROOT_INO, b"f")).size == 11
    assert await use(meta) == (11, 1)


async def test_an_open_file_can_be_restored_and_purged(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await file(meta, objects, b"f", b"hello")
    await meta.open(ino)
    await meta.unlink(ROOT_INO, b"f")
    await meta.restore(ino, ROOT_INO, b"f")
    assert await use(meta) == (5, 1)
    await meta.unlink(ROOT_INO, b"f")
    assert await meta.upkeep.purge_trash(datetime.now(UTC) + timedelta(hours=1), 10) == 1
    assert objects.read(await meta.file_map(ino)) == b"hello"
    await let_go(meta, ino)
    assert await use(meta) == (0, 0)
    assert len(await meta_volume.freed_slices()) == 1


async def test_a_crashed_session_leaves_its_unlinked_files_to_the_trash(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await file(meta, objects, b"f", b"hello")
    await other.open(ino)
    await meta.unlink(ROOT_INO, b"f")
    await meta_volume.fence(other)
    assert await use(meta) == (0, 0)
    assert await names(meta) == [b"f"]


async def test_what_is_replaced_goes_to_the_trash(meta: MetaStore, objects: Objects) -> None:
    first = await file(meta, objects, b"f", b"one")
    await file(meta, objects, b"g", b"two")
    await meta.rename(ROOT_INO, b"g", ROOT_INO, b"f")
    unnamed = (await meta.create_unlinked(0o600, ME)).attr.ino
    await meta.commit(Commit(unnamed, (objects.stored(0, b"three"),)))
    await meta.publish(unnamed, ROOT_INO, b"f")
    assert await names(meta) == [b"f", b"f"]
    assert await use(meta) == (5, 1)
    assert (await meta.upkeep.list_trash(None, 10))[0].ino == first


async def test_what_is_empty_or_young_is_kept_and_comes_back(
    meta: MetaStore, objects: Objects
) -> None:
    """Trees are made of such things: nothing may be missing when one is restored."""
    await file(meta, objects, b"empty", b"")
    await meta.symlink(ROOT_INO, b"symlink", b"target", ME)
    for name, mode in ((b"fifo", 0o010640), (b"socket", 0o140600)):
        await meta.mknod(ROOT_INO, name, mode, 0, ME)
    made = {name: await meta.lookup(ROOT_INO, name) for name in (b"empty", b"symlink", b"fifo")}
    made[b"socket"] = await meta.lookup(ROOT_INO, b"socket")
    made[b"d"] = await meta.mkdir(ROOT_INO, b"d", 0o2750, ME)
    await meta.sync()  # what one batch creates and removes leaves nothing
    for name in made:
        await (meta.rmdir if name == b"d" else meta.unlink)(ROOT_INO, name)
    assert await names(meta) == list(made)
    assert await use(meta) == (0, 0)
    for name, before in made.items():
        after = await meta.restore(before.ino, ROOT_INO, name)
        assert (after.mode, after.nlink, after.uid, after.gid, after.size, after.mtime_ns) == (
            before.mode,
            before.nlink,
            before.uid,
            before.gid,
            before.size,
            before.mtime_ns,
        )
    assert await meta.readlink(made[b"symlink"].ino) == b"target"
    assert await meta.readdir(made[b"d"].ino, 0, 10) == []
    assert (await use(meta))[1] == len(made)


async def linked(meta: MetaStore) -> dict[bytes, bool]:
    """Names in the trash, and whether their inodes had others."""
    return {one.name: one.linked for one in await meta.upkeep.list_trash(None, 100)}


async def test_a_name_beside_others_comes_back_as_a_link(meta: MetaStore, objects: Objects) -> None:
    ino = await file(meta, objects, b"f", b"one")
    await meta.link(ino, ROOT_INO, b"g")
    before = (await meta.getattr(ROOT_INO)).mtime_ns
    await meta.unlink(ROOT_INO, b"f")
    (entry,) = await meta.upkeep.list_trash(None, 10)
    assert (entry.ino, entry.parent, entry.name, entry.linked) == (ino, ROOT_INO, b"f", True)
    assert (entry.nlink, entry.size, entry.dir_mtime_ns) == (1, 3, before)
    assert await use(meta) == (3, 1)
    with pytest.raises(errors.NotFound):
        await meta.restore(ino, ROOT_INO, b"f")
    with pytest.raises(errors.NotFound):
        await meta.restore(ino, ROOT_INO, b"f", (ROOT_INO, b"other"))
    with pytest.raises(errors.Exists):
        await meta.restore(ino, ROOT_INO, b"g", (ROOT_INO, b"f"))
    back = await meta.restore(ino, ROOT_INO, b"again", (ROOT_INO, b"f"))
    assert (back.ino, back.nlink) == (ino, 2)
    assert await names(meta) == []
    assert await use(meta) == (3, 1)


async def test_any_removed_name_brings_its_file_back(meta: MetaStore, objects: Objects) -> None:
    ino = await file(meta, objects, b"f", b"one")
    await meta.link(ino, ROOT_INO, b"g")
    await meta.unlink(ROOT_INO, b"f")
    await meta.unlink(ROOT_INO, b"g")
    assert await linked(meta) == {b"f": True, b"g": False}
    assert await use(meta) == (0, 0)
    back = await meta.restore(ino, ROOT_INO, b"f", (ROOT_INO, b"f"))
    assert (back.ino, back.nlink) == (ino, 1)
    assert await use(meta) == (3, 1)
    # Its last name became one beside others.
    assert await linked(meta) == {b"g": True}
    back = await meta.restore(ino, ROOT_INO, b"g", (ROOT_INO, b"g"))
    assert (back.ino, back.nlink) == (ino, 2)
    assert await names(meta) == []


async def test_a_removed_tree_keeps_all_names_of_its_files(
    meta: MetaStore, objects: Objects
) -> None:
    top = (await meta.mkdir(ROOT_INO, b"top", 0o755, ME)).ino
    inside = await file(meta, objects, b"a", b"one", top)
    outside = await file(meta, objects, b"x", b"two", top)
    await meta.link(inside, top, b"b")
    await meta.link(inside, top, b"c")
    await meta.link(outside, top, b"y")
    await meta.link(outside, ROOT_INO, b"z")
    await meta.remove_tree(ROOT_INO, b"top")
    kept = await linked(meta)
    assert sorted(kept) == [b"a", b"b", b"c", b"top", b"x", b"y"]
    assert sorted(kept[name] for name in (b"a", b"b", b"c")) == [False, True, True]
    assert (kept[b"x"], kept[b"y"]) == (True, True)
    assert await use(meta) == (3, 1)
    assert (await meta.getattr(outside)).nlink == 1


async def test_removed_names_leave_with_their_time_and_with_their_file(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await file(meta, objects, b"f", b"one")
    for name in (b"g", b"h"):
        await meta.link(ino, ROOT_INO, name)
    await meta.unlink(ROOT_INO, b"f")
    assert await meta.upkeep.purge_trash(None, 10) == 0
    assert await meta.upkeep.purge_trash(datetime.now(UTC) + timedelta(hours=1), 10) == 1
    assert await names(meta) == []
    await meta.unlink(ROOT_INO, b"g")
    # The last name of a file in a volume whose trash has been disabled.
    await meta_volume.keep_trash(0)
    await meta.unlink(ROOT_INO, b"h")
    assert await names(meta) == []
    assert len(await meta_volume.freed_slices()) == 1


async def test_without_trash_no_removed_name_is_kept(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    await meta_volume.keep_trash(0)
    ino = await file(meta, objects, b"f", b"one")
    await meta.link(ino, ROOT_INO, b"g")
    await meta.unlink(ROOT_INO, b"f")
    assert await names(meta) == []


async def test_a_replaced_name_beside_others_is_kept(meta: MetaStore, objects: Objects) -> None:
    ino = await file(meta, objects, b"f", b"one")
    await meta.link(ino, ROOT_INO, b"g")
    await file(meta, objects, b"new", b"two")
    await meta.rename(ROOT_INO, b"new", ROOT_INO, b"g")
    (entry,) = await meta.upkeep.list_trash(None, 10)
    assert (entry.name, entry.ino, entry.linked, entry.dir_mtime_ns) == (b"g", ino, True, None)


async def test_removed_names_are_bounded(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await file(meta, objects, b"f", b"one")
    for number in range(6):
        for name in (b"lock", b"%d" % number):
            await meta.link(ino, ROOT_INO, name)
            await meta.unlink(ROOT_INO, name)
            # Removed once more: a name of one inode has one entry.
            await meta.link(ino, ROOT_INO, name)
            await meta.unlink(ROOT_INO, name)
    assert await names(meta) == [b"0", b"1", b"2", b"3", b"4", b"lock", b"5"]
    assert await meta.upkeep.thin_trash(2, 10) == 0
    assert await meta.upkeep.thin_links(4, 7, 10) == 0
    assert await meta.upkeep.thin_links(4, 5, 1) == 1
    assert await meta.upkeep.thin_links(4, 5, 10) == 1
    assert await names(meta) == [b"2", b"3", b"4", b"lock", b"5"]
    await meta_volume.limit(None, 8)
    assert await meta.upkeep.thin_links(4, 100, 10) == 3
    assert await names(meta) == [b"lock", b"5"]


async def test_removed_names_of_many_files_are_thinned(meta: MetaStore, objects: Objects) -> None:
    for number in range(4):
        ino = await file(meta, objects, b"%d" % number, b"x")
        await meta.link(ino, ROOT_INO, b"lock")
        await meta.unlink(ROOT_INO, b"lock")
    assert await meta.upkeep.thin_trash(2, 10) == 2
    assert await names(meta) == [b"lock", b"lock"]


async def test_entries_tell_the_time_of_their_directory(meta: MetaStore, objects: Objects) -> None:
    """A run of removals can be followed back to the time before it."""
    top = (await meta.mkdir(ROOT_INO, b"top", 0o755, ME)).ino
    await file(meta, objects, b"f", b"one", top)
    await meta.mkdir(top, b"d", 0o755, ME)
    await meta.setattr(top, SetAttr(mtime_ns=1_234_567_890_123_456_789))
    await meta.sync()  # what exists only for a moment does not reach the trash
    await meta.unlink(top, b"f")
    await meta.rmdir(top, b"d")
    first, second = await meta.upkeep.list_trash(None, 10)
    assert first.dir_mtime_ns == 1_234_567_890_123_456_789
    assert second.dir_mtime_ns == in_ns(first.deleted_at)
    assert (await meta.getattr(top)).mtime_ns == in_ns(second.deleted_at)


def in_ns(moment: datetime) -> int:
    """Nanoseconds since the epoch."""
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


async def test_empty_directories_of_one_name_are_thinned(meta: MetaStore) -> None:
    """A directory that serves as a lock must not push out what people removed."""
    for _ in range(4):
        await meta.mkdir(ROOT_INO, b"lock", 0o755, ME)
        await meta.rmdir(ROOT_INO, b"lock")
    assert await meta.upkeep.thin_trash(2, 10) == 2
    assert await names(meta) == [b"lock", b"lock"]


async def test_a_removed_tree_keeps_its_empty_parts(meta: MetaStore, objects: Objects) -> None:
    top = (await meta.mkdir(ROOT_INO, b"top", 0o755, ME)).ino
    await meta.mkdir(top, b"empty", 0o755, ME)
    await meta.mknod(top, b"fifo", 0o010640, 0, ME)
    await file(meta, objects, b"file", b"", top)
    await meta.remove_tree(ROOT_INO, b"top")
    assert set(await names(meta)) == {b"top", b"empty", b"fifo", b"file"}
    assert await use(meta) == (0, 0)


async def test_a_removed_directory_keeps_the_place_of_what_was_in_it(
    meta: MetaStore, objects: Objects
) -> None:
    directory = (await meta.mkdir(ROOT_INO, b"d", 0o750, ME)).ino
    ino = await file(meta, objects, b"f", b"one", directory)
    await meta.unlink(directory, b"f")
    await meta.rmdir(ROOT_INO, b"d")
    assert await names(meta) == [b"f", b"d"]
    place = await meta.upkeep.place(directory)
    assert place is not None
    assert (place.parent, place.name, place.alive) == (ROOT_INO, b"d", False)
    for call in (meta.getattr(directory), meta.readdir(directory, 0, 10)):
        with pytest.raises(errors.NotFound):
            await call
    with pytest.raises(errors.NotFound):
        await meta.restore(ino, directory, b"f")
    root = await meta.getattr(ROOT_INO)
    back = await meta.restore(directory, ROOT_INO, b"d")
    assert (back.nlink, back.mode & 0o777) == (2, 0o750)
    assert (await meta.getattr(ROOT_INO)).nlink == root.nlink + 1
    await meta.restore(ino, directory, b"f")
    assert [entry.name for entry in await meta.readdir(directory, 0, 10)] == [b"f"]
    place = await meta.upkeep.place(directory)
    assert place is not None
    assert place.alive
    assert await use(meta) == (3, 2)


async def test_a_removed_tree_goes_to_the_trash(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    top = (await meta.mkdir(ROOT_INO, b"top", 0o755, ME)).ino
    below = (await meta.mkdir(top, b"below", 0o755, ME)).ino
    for number in range(5):
        await file(meta, objects, b"%d" % number, b"x" * (number + 1), below)
    kept = await file(meta, objects, b"kept", b"kept", top)
    await meta.link(kept, ROOT_INO, b"kept")
    held = (await meta.lookup(below, b"0")).ino
    await meta.open(held)
    await meta.remove_tree(ROOT_INO, b"top")
    found = {entry.name: entry for entry in await meta.upkeep.list_trash(None, 100)}
    assert set(found) == {b"top", b"below", b"0", b"1", b"2", b"3", b"4", b"kept"}
    assert found[b"1"].parent == below
    assert found[b"below"].parent == top
    assert found[b"top"].parent == ROOT_INO
    assert await use(meta) == (4 + 1, 2)
    await let_go(meta, held)
    assert await use(meta) == (4, 1)
    assert await meta_volume.freed_slices() == set()
    for count in (7, 1, 0):
        assert await meta.upkeep.purge_trash(datetime.now(UTC) + timedelta(hours=1), 100) == count
    assert len(await meta_volume.freed_slices()) == 5
    assert await use(meta) == (4, 1)


async def test_restoring_never_replaces_and_counts(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    ino = await file(meta, objects, b"f", b"hello")
    await meta.unlink(ROOT_INO, b"f")
    await file(meta, objects, b"f", b"x")
    with pytest.raises(errors.Exists):
        await meta.restore(ino, ROOT_INO, b"f")
    with pytest.raises(errors.NotFound):
        await meta.restore(Ino(999), ROOT_INO, b"g")
    with pytest.raises(errors.NotDirectory):
        await meta.restore(ino, (await meta.lookup(ROOT_INO, b"f")).ino, b"g")
    await meta_volume.limit(5, None)
    with pytest.raises(errors.QuotaExceeded):
        await meta.restore(ino, ROOT_INO, b"g")
    await meta_volume.limit(None, 1)
    with pytest.raises(errors.QuotaExceeded):
        await meta.restore(ino, ROOT_INO, b"g")
    await meta_volume.limit(6, 2)
    await meta.restore(ino, ROOT_INO, b"g")
    assert await use(meta) == (6, 2)


async def test_the_trash_gives_room_to_the_quota(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    await meta_volume.limit(10, None)
    for _ in range(5):
        await file(meta, objects, b"f", b"x" * 10)
        await meta.unlink(ROOT_INO, b"f")
    assert await use(meta) == (0, 0)
    assert await names(meta) == [b"f"] * 5


async def test_old_entries_are_purged_in_order(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    for number in range(6):
        await file(meta, objects, b"%d" % number, b"x")
        await meta.unlink(ROOT_INO, b"%d" % number)
    assert await meta.upkeep.purge_trash(None, 10) == 0
    third = (await meta.upkeep.list_trash(None, 10))[2]
    assert await meta.upkeep.purge_trash(third.deleted_at, 2) == 2
    assert await names(meta) == [b"2", b"3", b"4", b"5"]
    assert await meta.upkeep.purge_trash(third.deleted_at, 10) == 1
    assert await names(meta) == [b"3", b"4", b"5"]
    await meta_volume.keep_trash(0)
    assert await meta.upkeep.purge_trash(None, 10) == 3
    assert len(await meta_volume.freed_slices()) == 6


async def test_pages_of_the_list_neither_skip_nor_repeat(meta: MetaStore, objects: Objects) -> None:
    for number in range(7):
        await file(meta, objects, b"%d" % number, b"x")
        await meta.unlink(ROOT_INO, b"%d" % number)
    seen: list[TrashEntry] = []
    while page := await meta.upkeep.list_trash(seen[-1] if seen else None, 3):
        seen += page
    assert [entry.name for entry in seen] == [b"%d" % number for number in range(7)]


async def test_the_trash_is_bounded(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    for number in range(8):
        await file(meta, objects, b"%d" % number, b"x" * 10)
        await meta.unlink(ROOT_INO, b"%d" % number)
    assert await meta.upkeep.trash_excess(4, 100) is None
    entries = await meta.upkeep.list_trash(None, 10)
    assert await meta.upkeep.trash_excess(4, 5) == entries[2].deleted_at
    await meta_volume.limit(120, None)
    assert await meta.upkeep.trash_excess(4, 100) == entries[4].deleted_at
    await meta_volume.limit(None, 24)
    assert await meta.upkeep.trash_excess(4, 100) == entries[1].deleted_at


async def test_many_versions_of_one_name_are_thinned(
    meta: MetaStore, meta_volume: MetaVolume, objects: Objects
) -> None:
    await file(meta, objects, b"other", b"x")
    await meta.unlink(ROOT_INO, b"other")
    for number in range(6):
        await file(meta, objects, b"journal", b"x" * (number + 1))
        await meta.unlink(ROOT_INO, b"journal")
    assert await meta.upkeep.thin_trash(2, 3) == 3
    assert await meta.upkeep.thin_trash(2, 3) == 1
    assert await meta.upkeep.thin_trash(2, 3) == 0
    assert [(one.name, one.size) for one in await meta.upkeep.list_trash(None, 10)] == [
        (b"other", 1),
        (b"journal", 5),
        (b"journal", 6),
    ]
    assert len(await meta_volume.freed_slices()) == 4


async def test_an_open_file_in_the_trash_cannot_be_published(
    meta: MetaStore, meta_volume: MetaVolume
) -> None:
    await meta_volume.keep_trash()
    made, _ = await meta.create(ROOT_INO, b"f", 0o644, ME, exclusive=True)
    await meta.unlink(ROOT_INO, b"f")
    with pytest.raises(errors.InvalidArgument):
        await meta.publish(made.attr.ino, ROOT_INO, b"g")
