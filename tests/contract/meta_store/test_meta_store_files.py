"""Contract of `MetaStore`, bytes of files: every test runs on memory and on PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.extents import Objects
from tests.harness.volumes.metastore import let_go
from wrkfs import errors
from wrkfs.layout import CHUNK_SIZE, INLINE_MAX, KIB, MIB
from wrkfs.types import ROOT_INO, Caller, Commit, Extent, Ino, SetAttr, SliceId

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.types import Attr

ME = Caller(1000, 1001)


@pytest.fixture
def objects() -> Objects:
    """Where the slices of this test are."""
    return Objects()


async def opened(meta: MetaStore, name: bytes = b"f") -> Ino:
    return (await meta.create(ROOT_INO, name, 0o644, ME, exclusive=True))[0].attr.ino


async def put(meta: MetaStore, ino: Ino, *extents: Extent, append: bool = False) -> Attr:
    return await meta.commit(Commit(ino, extents, append=append, durable=False))


async def test_a_commit_is_seen_by_all(meta: MetaStore, other: MetaStore, objects: Objects) -> None:
    file = await opened(meta)
    before = await meta.getattr(file)
    after = await meta.commit(Commit(file, (objects.inline(0, b"hello"),)))
    assert after.size == 5
    assert after.version > before.version
    assert after.mtime_ns > before.mtime_ns
    assert after.ctime_ns > before.ctime_ns
    assert after.atime_ns == before.atime_ns
    found = await other.file_map(file)
    assert found.attr == after
    assert objects.read(found) == b"hello"
    assert (await other.open(file)) == found


async def test_a_commit_can_bring_its_mtime(meta: MetaStore, objects: Objects) -> None:
    file = await opened(meta)
    attr = await meta.commit(Commit(file, (objects.inline(0, b"x"),), mtime_ns=42))
    assert attr.mtime_ns == 42


async def test_a_commit_without_extents_changes_nothing(meta: MetaStore) -> None:
    file = await opened(meta)
    before = await meta.getattr(file)
    assert await meta.commit(Commit(file, ())) == before
    assert await meta.getattr(file) == before
    await meta.sync()


async def test_large_slices_keep_their_checksums(meta: MetaStore, objects: Objects) -> None:
    file = await opened(meta)
    extent = objects.stored(0, bytes(5 * MIB))
    await put(meta, file, extent)
    (ref,) = (await meta.file_map(file)).refs
    assert (ref.pos, ref.slice_id, ref.size, ref.off, ref.length) == (
        0,
        extent.slice_id,
        5 * MIB,
        0,
        5 * MIB,
    )
    assert ref.checksums == extent.checksums
    assert ref.inline is None


OLD = b"abcdefghij"


@pytest.mark.parametrize("kind", ["inline", "stored"])
async def test_commits_overlap_in_all_ways(meta: MetaStore, objects: Objects, kind: str) -> None:
    make = objects.inline if kind == "inline" else objects.stored
    for pos, length in itertools.product(range(13), (1, 4, 9, 10, 14)):
        file = await opened(meta, b"%d-%d" % (pos, length))
        await put(meta, file, make(2, OLD))
        new = bytes(range(65, 65 + length))
        attr = await put(meta, file, make(pos, new))
        content = bytearray(b"\0\0" + OLD).ljust(pos, b"\0")
        content[pos : pos + length] = new
        found = await meta.file_map(file)
        assert attr.size == len(content)
        assert objects.read(found) == bytes(content)
        if pos <= 2 and pos + length >= 12:
            assert len(found.refs) == 1


async def test_extents_of_one_commit_overlay_in_order(meta: MetaStore, objects: Objects) -> None:
    file = await opened(meta)
    await put(
        meta,
        file,
        objects.stored(0, b"aaaaaaaa"),
        objects.inline(2, b"bbbb"),
        objects.stored(3, b"c"),
        objects.inline(10, b"d"),
    )
    assert objects.read(await meta.file_map(file)) == b"aabcbbaa\0\0d"


async def test_covered_slices_are_let_go(
    meta_volume: MetaVolume, meta: MetaStore, objects: Objects
) -> None:
    file = await opened(meta)
    first, second = objects.stored(0, b"a" * 10), objects.stored(10, b"b" * 10)
    await put(meta, file, first, second)
    await put(meta, file, objects.stored(0, b"c" * 19))
    assert await meta_volume.freed_slices() == {first.slice_id}
    await put(meta, file, objects.inline(5, b"d" * 15))
    assert await meta_volume.freed_slices() == {first.slice_id, second.slice_id}
    assert objects.read(await meta.file_map(file)) == b"c" * 5 + b"d" * 15


async def test_a_slice_across_chunks_goes_with_its_last_ref(
    meta_volume: MetaVolume, meta: MetaStore, objects: Objects
) -> None:
    file = await opened(meta)
    across = objects.stored(CHUNK_SIZE - 4, b"12345678")
    await put(meta, file, across)
    found = await meta.file_map(file)
    assert [(ref.pos, ref.off, ref.length) for ref in found.refs] == [
        (CHUNK_SIZE - 4, 0, 4),
        (CHUNK_SIZE, 4, 4),
    ]
    await put(meta, file, objects.inline(CHUNK_SIZE - 4, b"abcd"))
    assert await meta_volume.freed_slices() == set()
    assert objects.read(await meta.file_map(file))[-8:] == b"abcd5678"
    await meta.setattr(file, SetAttr(size=CHUNK_SIZE))
    assert await meta_volume.freed_slices() == {across.slice_id}


async def test_inline_bytes_across_chunks(meta: MetaStore, objects: Objects) -> None:
    file = await opened(meta)
    await put(meta, file, objects.inline(CHUNK_SIZE - 3, b"123456"))
    await put(meta, file, objects.inline(CHUNK_SIZE + 3, b"789"))
    assert objects.read(await meta.file_map(file))[-9:] == b"123456789"
    await put(meta, file, objects.inline(CHUNK_SIZE - 3, b"abcdefghi"))
    assert objects.read(await meta.file_map(file))[-9:] == b"abcdefghi"
    await meta.unlink(ROOT_INO, b"f")


async def test_inline_bytes_behind_each_other_become_one_slice(
    meta: MetaStore, objects: Objects
) -> None:
    file = await opened(meta)
    content = b""
    for n in range(10):
        data = bytes([n]) * 1000
        extent = objects.inline(len(content), data)
        await put(meta, file, extent)
        content += data
        (ref,) = (await meta.file_map(file)).refs
        assert ref.slice_id == extent.slice_id
    await put(meta, file, objects.inline(len(content), b"z" * INLINE_MAX))
    found = await meta.file_map(file)
    assert len(found.refs) == 2
    assert objects.read(found) == content + b"z" * INLINE_MAX
    # Behind a slice of the object store, or not behind the last one, nothing is joined.
    await put(meta, file, objects.stored(0, b"s" * 10))
    await put(meta, file, objects.inline(10, b"t"))
    assert len((await meta.file_map(file)).refs) == 4


async def test_joining_leaves_cut_bytes_behind(meta: MetaStore, objects: Objects) -> None:
    file = await opened(meta)
    await put(meta, file, objects.inline(0, b"secret"))
    await meta.setattr(file, SetAttr(size=2))
    await put(meta, file, objects.inline(2, b"new"))
    found = await meta.file_map(file)
    assert objects.read(found) == b"senew"
    assert len(found.refs) == 1
    assert found.refs[0].inline == b"senew"


@pytest.mark.parametrize("kind", ["inline", "stored"])
async def test_truncate_clips_for_good(
    meta_volume: MetaVolume, meta: MetaStore, objects: Objects, kind: str
) -> None:
    file = await opened(meta)
    make = objects.inline if kind == "inline" else objects.stored
    first, second = make(0, b"a" * 10), make(12, b"b" * 10)
    old = await put(meta, file, first, second)
    cut = await meta.setattr(file, SetAttr(size=4))
    assert cut.size == 4
    assert cut.version > old.version
    assert cut.mtime_ns > old.mtime_ns
    grown = await meta.setattr(file, SetAttr(size=30))
    assert grown.version > cut.version
    assert objects.read(await meta.file_map(file)) == b"aaaa" + bytes(26)
    await put(meta, file, make(28, b"zzzz"))
    assert objects.read(await meta.file_map(file)) == b"aaaa" + bytes(24) + b"zzzz"
    await meta.open(file, truncate=True)
    found = await meta.file_map(file)
    assert found.attr.size == 0
    assert found.refs == ()
    if kind == "stored":
        assert {first.slice_id, second.slice_id} <= await meta_volume.freed_slices()


async def test_truncate_to_the_same_size_keeps_the_version(
    meta: MetaStore, objects: Objects
) -> None:
    file = await opened(meta)
    old = await put(meta, file, objects.inline(0, b"abc"))
    same = await meta.setattr(file, SetAttr(size=3))
    assert same.version == old.version
    assert same.mtime_ns > old.mtime_ns
    assert same.ctime_ns > old.ctime_ns


@pytest.mark.parametrize("size", [0, 5000])
async def test_truncate_to_the_same_size_moves_no_times_of_what_holds_no_bytes(
    meta: MetaStore, size: int
) -> None:
    file = await opened(meta)
    old = await meta.setattr(file, SetAttr(size=size))
    assert await meta.setattr(file, SetAttr(size=size)) == old


async def test_appends_of_two_sessions_are_all_kept(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    file = await opened(meta)
    await other.open(file)
    lines = [b"%d-%03d\n" % (n % 2, n) for n in range(60)]
    await asyncio.gather(
        *(
            put((meta, other)[n % 2], file, objects.inline(0, line), append=True)
            for n, line in enumerate(lines)
        )
    )
    content = objects.read(await meta.file_map(file))
    assert sorted(content.splitlines(keepends=True)) == sorted(lines)


async def test_an_append_may_have_several_extents(meta: MetaStore, objects: Objects) -> None:
    file = await opened(meta)
    await put(meta, file, objects.stored(0, b"abc"))
    await put(meta, file, objects.inline(0, b"de"), objects.stored(2, b"fg"), append=True)
    assert objects.read(await meta.file_map(file)) == b"abcdefg"


async def test_commits_that_make_no_sense(meta: MetaStore, objects: Objects) -> None:
    file = await opened(meta)
    some = objects.inline(0, b"x")
    stored = objects.stored(0, b"y" * 10)
    bad = [
        Extent(-1, SliceId(1), 1, b"", b"x"),
        Extent(0, SliceId(1), 0, b"", b""),
        Extent(0, SliceId(0), 1, b"", b"x"),
        Extent(0, SliceId(1), 2, b"", b"x"),
        Extent(0, SliceId(1), INLINE_MAX + 1, b"", bytes(INLINE_MAX + 1)),
        Extent(0, SliceId(1), 10, b"", None),
        Extent(0, SliceId(1), 128 * KIB + 1, b"1234", None),
    ]
    for extent in bad:
        with pytest.raises(errors.InvalidArgument):
            await put(meta, file, extent)
    with pytest.raises(errors.InvalidArgument):
        await put(meta, file, stored, stored)
    with pytest.raises(errors.FileTooBig):
        await put(meta, file, objects.inline((1 << 63) - 2, b"xy"))
    assert (await put(meta, file, objects.inline((1 << 63) - 2, b"x"))).size == (1 << 63) - 1
    with pytest.raises(errors.FileTooBig):
        await put(meta, file, objects.inline(0, b"x"), append=True)
    await meta.setattr(file, SetAttr(size=0))
    await put(meta, file, some)
    with pytest.raises(errors.InvalidArgument):
        await put(meta, file, some)
    assert objects.read(await meta.file_map(file)) == b"x"
    with pytest.raises(errors.IsDirectory):
        await put(meta, ROOT_INO, objects.inline(0, b"x"))
    with pytest.raises(errors.Stale):
        await put(meta, Ino(999_999), objects.inline(0, b"x"))


async def test_slice_ids_are_never_given_twice(meta: MetaStore, other: MetaStore) -> None:
    given: list[int] = []
    for count in (1, 3, 2000, 1, 500):
        for session in (meta, other):
            first = await session.reserve_slices(count)
            assert first > 0
            given += range(first, first + count)
    assert len(set(given)) == len(given)
    with pytest.raises(errors.InvalidArgument):
        await meta.reserve_slices(0)


# -- sustained files --


async def test_an_open_file_outlives_its_name(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    file = await opened(meta)
    await put(meta, file, objects.inline(0, b"kept"))
    await other.open(file)
    await other.unlink(ROOT_INO, b"f")
    assert (await meta.getattr(file)).nlink == 0
    await let_go(meta, file)
    assert objects.read(await other.file_map(file)) == b"kept"
    await put(other, file, objects.inline(4, b" and written"))
    assert (await meta.statfs()).bytes_used == 16
    await let_go(other, file)
    with pytest.raises(errors.NotFound):
        await other.getattr(file)
    with pytest.raises(errors.NotFound):
        await other.open(file)
    with pytest.raises(errors.Stale):
        await put(other, file, objects.inline(0, b"x"))
    use = await meta.statfs()
    assert (use.bytes_used, use.inodes_used) == (0, 0)


async def test_handles_are_counted(meta: MetaStore, objects: Objects) -> None:
    file = await opened(meta)
    await put(meta, file, objects.inline(0, b"x"))
    await meta.open(file)
    await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=False)
    await meta.unlink(ROOT_INO, b"f")
    for _ in range(2):
        await let_go(meta, file)
        assert objects.read(await meta.file_map(file)) == b"x"
    await let_go(meta, file)
    with pytest.raises(errors.NotFound):
        await meta.file_map(file)
    await let_go(meta, file)


async def test_opens_and_releases_at_once(meta: MetaStore) -> None:
    file = await opened(meta)

    async def use(n: int) -> None:
        if n % 2:
            await meta.open(file)
        else:
            await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=False)
        await let_go(meta, file)

    await let_go(meta, file)
    for _ in range(10):
        await asyncio.gather(*(use(n) for n in range(10)))
    await asyncio.gather(meta.open(file), *(use(n) for n in range(9)))
    await meta.unlink(ROOT_INO, b"f")
    assert (await meta.getattr(file)).nlink == 0
    await let_go(meta, file)
    with pytest.raises(errors.NotFound):
        await meta.getattr(file)


async def test_a_replaced_file_lives_while_open(meta: MetaStore, other: MetaStore) -> None:
    file = await opened(meta, b"old")
    await meta.mknod(ROOT_INO, b"new", 0o600, 0, ME)
    await other.rename(ROOT_INO, b"new", ROOT_INO, b"old")
    assert (await meta.getattr(file)).nlink == 0
    await let_go(meta, file)
    with pytest.raises(errors.NotFound):
        await meta.getattr(file)


async def test_closing_a_session_lets_go(meta: MetaStore, other: MetaStore) -> None:
    file = await opened(meta)
    nameless = (await meta.create_unlinked(0o600, ME)).attr.ino
    await other.unlink(ROOT_INO, b"f")
    await meta.close()
    for gone in (file, nameless):
        with pytest.raises(errors.NotFound):
            await other.getattr(gone)
    assert (await other.statfs()).inodes_used == 0
    await meta.close()


async def test_a_fenced_session_changes_nothing(
    meta_volume: MetaVolume, meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    file = await opened(meta)
    named = await opened(meta, b"named")
    await other.unlink(ROOT_INO, b"f")
    await meta_volume.fence(meta)
    with pytest.raises(errors.NotFound):
        await other.getattr(file)
    calls = (
        lambda: put(meta, named, objects.inline(0, b"x")),
        lambda: meta.create(ROOT_INO, b"x", 0o600, ME, exclusive=False),
        lambda: meta.unlink(ROOT_INO, b"named"),
        lambda: meta.remove_tree(ROOT_INO, b"named"),
        lambda: meta.setattr(named, SetAttr(size=0)),
        lambda: meta.setxattr(named, b"user.x", b""),
        lambda: meta.rename(ROOT_INO, b"named", ROOT_INO, b"x"),
        lambda: meta.open(named),
        lambda: meta.sync(),
    )
    for call in calls:
        with pytest.raises(errors.Fenced):
            await call()
    assert (await other.getattr(named)).size == 0
    old = meta.session
    await meta.rejoin()
    assert meta.epoch == 2
    assert meta.session != old
    await put(meta, named, objects.inline(0, b"x"))
    assert objects.read(await other.file_map(named)) == b"x"


# -- publish --


async def test_publish_gives_a_name(meta: MetaStore, other: MetaStore, objects: Objects) -> None:
    hidden = await meta.create_unlinked(0o640, ME)
    assert hidden.attr.nlink == 0
    file = hidden.attr.ino
    await put(meta, file, objects.inline(0, b"body"))
    assert await meta.publish(file, ROOT_INO, b"p")
    found = await other.lookup(ROOT_INO, b"p")
    assert (found.ino, found.nlink, found.uid, found.mode & 0o7777) == (file, 1, 1000, 0o640)
    await let_go(meta, file)
    assert objects.read(await other.file_map(file)) == b"body"
    with pytest.raises(errors.InvalidArgument):
        await meta.publish(file, ROOT_INO, b"q")


async def test_publish_replaces_a_file_and_keeps_its_owner(
    meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    old = await opened(other, b"p")
    await other.setattr(old, SetAttr(mode=0o4751, uid=7, gid=8))
    file = (await meta.create_unlinked(0o600, ME)).attr.ino
    await put(meta, file, objects.inline(0, b"body"))
    assert not await meta.publish(file, ROOT_INO, b"p")
    found = await other.lookup(ROOT_INO, b"p")
    assert (found.ino, found.uid, found.gid, found.mode & 0o7777) == (file, 7, 8, 0o751)
    assert (await other.getattr(old)).nlink == 0
    await let_go(other, old)
    with pytest.raises(errors.NotFound):
        await other.getattr(old)


async def test_publish_conditions(meta: MetaStore, objects: Objects) -> None:
    old = await opened(meta, b"p")
    version = (await put(meta, old, objects.inline(0, b"old"))).version
    file = (await meta.create_unlinked(0o600, ME)).attr.ino
    wrong = [(old, version - 1), (old, version + 1), (file, version)]
    for if_version in wrong:
        with pytest.raises(errors.PreconditionFailed):
            await meta.publish(file, ROOT_INO, b"p", if_version=if_version)
    with pytest.raises(errors.PreconditionFailed):
        await meta.publish(file, ROOT_INO, b"absent", if_version=(old, version))
    with pytest.raises(errors.PreconditionFailed):
        await meta.publish(file, ROOT_INO, b"p", if_absent=True)
    assert not await meta.publish(file, ROOT_INO, b"p", if_version=(old, version))
    second = (await meta.create_unlinked(0o600, ME)).attr.ino
    assert await meta.publish(second, ROOT_INO, b"absent", if_absent=True)


async def test_removal_of_one_version(meta: MetaStore, other: MetaStore, objects: Objects) -> None:
    file = await opened(meta, b"p")
    version = (await put(meta, file, objects.inline(0, b"old"))).version
    for if_version in [(file, version - 1), (file, version + 1), (Ino(file + 1), version)]:
        with pytest.raises(errors.PreconditionFailed):
            await other.remove_tree(ROOT_INO, b"p", if_version=if_version)
    with pytest.raises(errors.NotFound):
        await other.remove_tree(ROOT_INO, b"absent", if_version=(file, version))
    assert (await meta.lookup(ROOT_INO, b"p")).version == version
    await other.remove_tree(ROOT_INO, b"p", if_version=(file, version))
    with pytest.raises(errors.NotFound):
        await meta.lookup(ROOT_INO, b"p")


async def test_publish_where_no_file_can_be(meta: MetaStore) -> None:
    await meta.mkdir(ROOT_INO, b"d", 0o755, ME)
    await meta.symlink(ROOT_INO, b"l", b"t", ME)
    file = (await meta.create_unlinked(0o600, ME)).attr.ino
    with pytest.raises(errors.IsDirectory):
        await meta.publish(file, ROOT_INO, b"d")
    with pytest.raises(errors.Exists):
        await meta.publish(file, ROOT_INO, b"l")
    with pytest.raises(errors.NotFound):
        await meta.publish(file, Ino(999_999), b"x")
    with pytest.raises(errors.NotDirectory):
        await meta.publish(file, file, b"x")
    with pytest.raises(errors.NotFound):
        await meta.publish(Ino(999_999), ROOT_INO, b"x")


# -- quota --


async def test_quota_of_bytes_is_exact(
    meta_volume: MetaVolume, meta: MetaStore, other: MetaStore, objects: Objects
) -> None:
    await meta_volume.limit(100, None)
    file = await opened(meta)
    await put(meta, file, objects.inline(0, b"x" * 60))
    second = await opened(other, b"g")
    with pytest.raises(errors.QuotaExceeded):
        await put(other, second, objects.stored(0, b"x" * 41))
    await put(other, second, objects.stored(0, b"x" * 40))
    await put(meta, file, objects.inline(10, b"y" * 50))
    await meta.setattr(file, SetAttr(size=1 << 50))
    assert (await other.statfs()).bytes_used == 100, "holes are free"
    with pytest.raises(errors.QuotaExceeded):
        await put(meta, file, objects.inline(1 << 20, b"z"))
    await meta.setattr(file, SetAttr(size=60))
    with pytest.raises(errors.QuotaExceeded):
        await put(meta, file, objects.inline(0, b"z"), append=True)
    assert (await meta.getattr(file)).size == 60
    use = await meta.statfs()
    assert (use.bytes_used, use.bytes_limit, use.inodes_used) == (100, 100, 2)
    await meta.setattr(file, SetAttr(size=10))
    assert (await other.statfs()).bytes_used == 50
    await other.link(second, ROOT_INO, b"h")
    assert (await other.statfs()).bytes_used == 50
    await other.remove_tree(ROOT_INO, b"g")
    assert (await other.statfs()).bytes_used == 50
    await meta.close()
    await other.unlink(ROOT_INO, b"h")
    await let_go(other, second)
    assert (await other.statfs()).bytes_used == 10
