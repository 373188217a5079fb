"""Contract of `MetaStore`, names and attributes: every test runs on memory and on PostgreSQL."""

from __future__ import annotations

import itertools
import stat
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.metastore import let_go
from wrkfs import errors
from wrkfs.layout import MAX_FILE_SIZE
from wrkfs.types import ROOT_INO, Caller, Ino, SetAttr, XattrFlags

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.types import Attr, Dentry

ME = Caller(1000, 1001)
NOWHERE = Ino(999_999)


async def make_file(meta: MetaStore, parent: Ino, name: bytes) -> Ino:
    """A closed, empty file."""
    return (await meta.mknod(parent, name, 0o644, 0, ME)).ino


async def names(meta: MetaStore, ino: Ino) -> list[bytes]:
    return sorted(entry.name for entry in await meta.readdir(ino, 0, 1000))


async def test_a_fresh_volume_has_an_empty_root(meta: MetaStore) -> None:
    root = await meta.getattr(ROOT_INO)
    assert root.is_dir
    assert root.nlink == 2
    assert await meta.parent(ROOT_INO) == ROOT_INO
    assert await names(meta, ROOT_INO) == []
    use = await meta.statfs()
    assert (use.bytes_used, use.bytes_limit, use.inodes_used, use.inodes_limit) == (
        0,
        None,
        0,
        None,
    )


async def test_sessions_have_numbers_of_their_own(meta: MetaStore, other: MetaStore) -> None:
    assert meta.session != other.session
    assert meta.epoch == other.epoch == 1


async def test_create_makes_a_file_that_others_see(meta: MetaStore, other: MetaStore) -> None:
    made, new = await meta.create(ROOT_INO, b"f", 0o4640, ME, exclusive=True)
    assert new
    assert made.refs == ()
    attr = made.attr
    assert (attr.mode, attr.nlink, attr.uid, attr.gid) == (stat.S_IFREG | 0o4640, 1, 1000, 1001)
    assert (attr.size, attr.rdev) == (0, 0)
    assert await other.lookup(ROOT_INO, b"f") == attr
    assert await other.getattr(attr.ino) == attr
    with pytest.raises(errors.Exists):
        await other.create(ROOT_INO, b"f", 0o600, ME, exclusive=True)
    found, new = await other.create(ROOT_INO, b"f", 0o600, ME, exclusive=False)
    assert not new
    assert found.attr == attr


async def test_create_where_no_file_can_be(meta: MetaStore) -> None:
    await meta.mkdir(ROOT_INO, b"d", 0o755, ME)
    await meta.symlink(ROOT_INO, b"l", b"t", ME)
    file = await make_file(meta, ROOT_INO, b"f")
    with pytest.raises(errors.IsDirectory):
        await meta.create(ROOT_INO, b"d", 0o600, ME, exclusive=False)
    with pytest.raises(errors.Exists):
        await meta.create(ROOT_INO, b"d", 0o600, ME, exclusive=True)
    with pytest.raises(errors.InvalidArgument):
        await meta.create(ROOT_INO, b"l", 0o600, ME, exclusive=False)
    with pytest.raises(errors.NotDirectory):
        await meta.create(file, b"x", 0o600, ME, exclusive=True)
    with pytest.raises(errors.NotFound):
        await meta.create(NOWHERE, b"x", 0o600, ME, exclusive=True)


@pytest.mark.parametrize("name", [b".", b"..", b"a/b", b"a\0", b"x" * 256, b""])
async def test_impossible_names(meta: MetaStore, name: bytes) -> None:
    wanted: type[errors.WrkfsError] = errors.InvalidArgument
    if len(name) > 255:
        wanted = errors.NameTooLong
    elif not name:
        wanted = errors.NotFound
    await make_file(meta, ROOT_INO, b"f")
    file = (await meta.create_unlinked(0o600, ME)).attr.ino
    with pytest.raises(wanted):
        await meta.lookup(ROOT_INO, name)
    with pytest.raises(wanted):
        await meta.create(ROOT_INO, name, 0o600, ME, exclusive=True)
    with pytest.raises(wanted):
        await meta.mkdir(ROOT_INO, name, 0o700, ME)
    with pytest.raises(wanted):
        await meta.symlink(ROOT_INO, name, b"t", ME)
    with pytest.raises(wanted):
        await meta.rename(ROOT_INO, b"f", ROOT_INO, name)
    with pytest.raises(wanted):
        await meta.link(file, ROOT_INO, name)
    with pytest.raises(wanted):
        await meta.publish(file, ROOT_INO, name)
    with pytest.raises(wanted):
        await meta.unlink(ROOT_INO, name)
    with pytest.raises(wanted):
        await meta.rmdir(ROOT_INO, name)
    with pytest.raises(wanted):
        await meta.remove_tree(ROOT_INO, name)


async def test_any_other_bytes_are_a_name(meta: MetaStore) -> None:
    every = bytes(byte for byte in range(1, 256) if byte != ord("/"))
    await make_file(meta, ROOT_INO, every)
    await make_file(meta, ROOT_INO, b"\xff" * 255)
    assert await names(meta, ROOT_INO) == [every, b"\xff" * 255]
    await meta.lookup(ROOT_INO, every)


async def test_lookup_of_what_is_not_there(meta: MetaStore) -> None:
    file = await make_file(meta, ROOT_INO, b"f")
    with pytest.raises(errors.NotFound):
        await meta.lookup(ROOT_INO, b"g")
    with pytest.raises(errors.NotDirectory):
        await meta.lookup(file, b"g")
    with pytest.raises(errors.NotFound):
        await meta.lookup(NOWHERE, b"g")
    with pytest.raises(errors.NotFound):
        await meta.getattr(NOWHERE)


async def test_directories_count_their_subdirectories(meta: MetaStore) -> None:
    one = await meta.mkdir(ROOT_INO, b"one", 0o750, ME)
    assert (one.mode, one.nlink, one.size) == (stat.S_IFDIR | 0o750, 2, 0)
    two = await meta.mkdir(one.ino, b"two", 0o750, ME)
    assert (await meta.getattr(ROOT_INO)).nlink == 3
    assert (await meta.getattr(one.ino)).nlink == 3
    assert await meta.parent(two.ino) == one.ino
    with pytest.raises(errors.NotEmpty):
        await meta.rmdir(ROOT_INO, b"one")
    await meta.rmdir(one.ino, b"two")
    assert (await meta.getattr(one.ino)).nlink == 2
    with pytest.raises(errors.NotFound):
        await meta.getattr(two.ino)
    await meta.rmdir(ROOT_INO, b"one")
    assert (await meta.getattr(ROOT_INO)).nlink == 2
    assert (await meta.statfs()).inodes_used == 0


async def test_setgid_directories_pass_on_their_group(meta: MetaStore) -> None:
    top = await meta.mkdir(ROOT_INO, b"top", 0o2775, Caller(1, 77))
    below = await meta.mkdir(top.ino, b"below", 0o755, ME)
    assert (below.gid, below.mode & 0o7777) == (77, 0o2755)
    made, _ = await meta.create(below.ino, b"f", 0o644, ME, exclusive=True)
    assert (made.attr.gid, made.attr.mode & 0o7777) == (77, 0o644)
    assert (await meta.symlink(below.ino, b"l", b"t", ME)).gid == 77
    file = (await meta.create_unlinked(0o644, ME)).attr.ino
    await meta.publish(file, below.ino, b"p")
    assert (await meta.getattr(file)).gid == 77


async def test_changes_of_entries_move_the_directory_times(meta: MetaStore) -> None:
    async def stamps() -> tuple[int, int]:
        attr = await meta.getattr(ROOT_INO)
        return attr.mtime_ns, attr.ctime_ns

    seen = [await stamps()]
    file = await make_file(meta, ROOT_INO, b"f")
    seen.append(await stamps())
    await meta.link(file, ROOT_INO, b"g")
    seen.append(await stamps())
    await meta.rename(ROOT_INO, b"g", ROOT_INO, b"h")
    seen.append(await stamps())
    await meta.unlink(ROOT_INO, b"h")
    seen.append(await stamps())
    await meta.mkdir(ROOT_INO, b"d", 0o755, ME)
    seen.append(await stamps())
    await meta.rmdir(ROOT_INO, b"d")
    seen.append(await stamps())
    assert all(new[0] > old[0] and new[1] > old[1] for old, new in itertools.pairwise(seen))


async def test_kinds_of_nodes(meta: MetaStore) -> None:
    fifo = await meta.mknod(ROOT_INO, b"fifo", stat.S_IFIFO | 0o600, 0, ME)
    assert stat.S_ISFIFO(fifo.mode)
    assert stat.S_ISSOCK((await meta.mknod(ROOT_INO, b"s", stat.S_IFSOCK | 0o600, 0, ME)).mode)
    assert stat.S_ISREG((await meta.mknod(ROOT_INO, b"r", 0o600, 0, ME)).mode)
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        made = await meta.mknod(ROOT_INO, f"dev{kind}".encode(), kind | 0o600, (1 << 32) - 1, ME)
        assert (made.mode, made.rdev) == (kind | 0o600, (1 << 32) - 1)
        assert await meta.getattr(made.ino) == made
    assert (await meta.mknod(ROOT_INO, b"f2", stat.S_IFIFO, 5, ME)).rdev == 0
    with pytest.raises(errors.InvalidArgument):
        await meta.mknod(ROOT_INO, b"dev", stat.S_IFCHR | 0o600, 1 << 32, ME)
    for kind in (stat.S_IFDIR, stat.S_IFLNK):
        with pytest.raises(errors.NotPermitted):
            await meta.mknod(ROOT_INO, b"dev", kind | 0o600, 5, ME)
    with pytest.raises(errors.Exists):
        await meta.mknod(ROOT_INO, b"fifo", stat.S_IFIFO, 0, ME)
    with pytest.raises(errors.InvalidArgument):
        await meta.open(fifo.ino)


async def test_symbolic_links(meta: MetaStore) -> None:
    target = b"\xff/../" + b"x" * 4090
    link = await meta.symlink(ROOT_INO, b"l", target, ME)
    assert link.is_symlink
    assert (link.mode & 0o777, link.size, link.nlink) == (0o777, len(target), 1)
    assert await meta.readlink(link.ino) == target
    with pytest.raises(errors.InvalidArgument):
        await meta.readlink(ROOT_INO)
    with pytest.raises(errors.NotFound):
        await meta.readlink(NOWHERE)
    for bad, wanted in ((b"", errors.NotFound), (b"a\0", errors.InvalidArgument)):
        with pytest.raises(wanted):
            await meta.symlink(ROOT_INO, b"m", bad, ME)
    with pytest.raises(errors.NameTooLong):
        await meta.symlink(ROOT_INO, b"m", b"x" * 4096, ME)
    await meta.unlink(ROOT_INO, b"l")
    with pytest.raises(errors.NotFound):
        await meta.readlink(link.ino)
    assert (await meta.statfs()).bytes_used == 0


async def test_hard_links(meta: MetaStore, other: MetaStore) -> None:
    file = await make_file(meta, ROOT_INO, b"a")
    folder = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    before = await meta.getattr(file)
    linked = await meta.link(file, folder, b"b")
    assert (linked.ino, linked.nlink) == (file, 2)
    assert linked.ctime_ns > before.ctime_ns
    assert await other.lookup(folder, b"b") == linked
    with pytest.raises(errors.Exists):
        await meta.link(file, ROOT_INO, b"d")
    with pytest.raises(errors.NotPermitted):
        await meta.link(folder, ROOT_INO, b"e")
    with pytest.raises(errors.NotFound):
        await meta.link(NOWHERE, ROOT_INO, b"e")
    with pytest.raises(errors.NotDirectory):
        await meta.link(file, file, b"e")
    await other.unlink(ROOT_INO, b"a")
    assert (await meta.getattr(file)).nlink == 1
    await other.unlink(folder, b"b")
    with pytest.raises(errors.NotFound):
        await meta.getattr(file)


async def test_an_unlinked_file_gets_no_new_link(meta: MetaStore) -> None:
    file = (await meta.create_unlinked(0o600, ME)).attr.ino
    with pytest.raises(errors.NotFound):
        await meta.link(file, ROOT_INO, b"a")


async def test_removing_the_wrong_kind(meta: MetaStore) -> None:
    await make_file(meta, ROOT_INO, b"f")
    folder = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    with pytest.raises(errors.IsDirectory):
        await meta.unlink(ROOT_INO, b"d")
    with pytest.raises(errors.NotDirectory):
        await meta.rmdir(ROOT_INO, b"f")
    for remove in (meta.unlink, meta.rmdir, meta.remove_tree):
        with pytest.raises(errors.NotFound):
            await remove(folder, b"x")
        with pytest.raises(errors.NotFound):
            await remove(NOWHERE, b"x")


async def test_a_removed_directory_takes_no_entries(meta: MetaStore, other: MetaStore) -> None:
    folder = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    file = await make_file(meta, ROOT_INO, b"f")
    await other.rmdir(ROOT_INO, b"d")
    with pytest.raises(errors.NotFound):
        await meta.create(folder, b"x", 0o600, ME, exclusive=True)
    with pytest.raises(errors.NotFound):
        await meta.link(file, folder, b"x")
    with pytest.raises(errors.NotFound):
        await meta.rename(ROOT_INO, b"f", folder, b"x")
    with pytest.raises(errors.NotFound):
        await meta.readdir(folder, 0, 10)
    with pytest.raises(errors.NotFound):
        await meta.parent(folder)


async def test_readdir_pages_by_cookie(meta: MetaStore) -> None:
    wanted = {b"%03d" % n for n in range(25)}
    for name in wanted:
        await make_file(meta, ROOT_INO, name)
    seen: list[Dentry] = []
    while page := await meta.readdir(ROOT_INO, seen[-1].cookie if seen else 0, 7):
        assert len(page) <= 7
        seen += page
    assert [entry.cookie for entry in seen] == sorted({entry.cookie for entry in seen})
    assert seen[0].cookie > 0
    assert {entry.name for entry in seen} == wanted
    assert [entry.attr for entry in seen] == [
        await meta.lookup(ROOT_INO, entry.name) for entry in seen
    ]
    file = await meta.lookup(ROOT_INO, b"000")
    with pytest.raises(errors.NotDirectory):
        await meta.readdir(file.ino, 0, 7)
    with pytest.raises(errors.NotDirectory):
        await meta.parent(file.ino)
    with pytest.raises(errors.NotFound):
        await meta.readdir(NOWHERE, 0, 7)


async def test_readdir_under_changes_keeps_what_stays(meta: MetaStore, other: MetaStore) -> None:
    stay = {b"stay%02d" % n for n in range(20)}
    go = {b"go%02d" % n for n in range(20)}
    for name in sorted(stay | go, key=lambda name: name[::-1]):
        await make_file(meta, ROOT_INO, name)
    seen: list[bytes] = []
    cookie = 0
    doomed = sorted(go)
    while page := await meta.readdir(ROOT_INO, cookie, 3):
        seen += [entry.name for entry in page]
        cookie = page[-1].cookie
        if doomed:
            await other.unlink(ROOT_INO, doomed.pop())
            await other.unlink(ROOT_INO, doomed.pop(0))
            fresh = await make_file(other, ROOT_INO, b"tmp")
            # Another inode takes a name that stays: the entry keeps its place.
            await other.rename(ROOT_INO, b"tmp", ROOT_INO, b"stay05")
            assert (await meta.lookup(ROOT_INO, b"stay05")).ino == fresh
    assert [name for name in seen if name in stay] == list(
        dict.fromkeys(n for n in seen if n in stay)
    )
    assert stay <= set(seen)


# -- attributes --


async def test_setattr_changes_only_what_is_given(meta: MetaStore, other: MetaStore) -> None:
    file = await make_file(meta, ROOT_INO, b"f")
    old = await meta.getattr(file)
    changed = await meta.setattr(file, SetAttr(mode=0o4755 | stat.S_IFDIR))
    assert changed.mode == stat.S_IFREG | 0o4755
    assert (changed.mtime_ns, changed.atime_ns, changed.version) == (
        old.mtime_ns,
        old.atime_ns,
        old.version,
    )
    assert changed.ctime_ns > old.ctime_ns
    changed = await meta.setattr(file, SetAttr(atime_ns=-5, mtime_ns=7))
    assert (changed.atime_ns, changed.mtime_ns) == (-5, 7)
    changed = await meta.setattr(file, SetAttr(atime_now=True, mtime_now=True))
    assert changed.atime_ns > old.atime_ns
    assert changed.mtime_ns > old.mtime_ns
    assert await other.getattr(file) == changed
    with pytest.raises(errors.NotFound):
        await meta.setattr(NOWHERE, SetAttr(mode=0))
    for bad in (SetAttr(uid=-1), SetAttr(gid=1 << 32), SetAttr(size=-1)):
        with pytest.raises(errors.InvalidArgument):
            await meta.setattr(file, bad)


@pytest.mark.parametrize(
    ("mode", "after"), [(0o6755, 0o755), (0o6745, 0o2745), (0o4711, 0o711), (0o1777, 0o1777)]
)
async def test_chown_takes_set_id_bits(meta: MetaStore, mode: int, after: int) -> None:
    file = await make_file(meta, ROOT_INO, b"f")
    for change in (SetAttr(uid=5), SetAttr(gid=6)):
        await meta.setattr(file, SetAttr(mode=mode))
        assert (await meta.setattr(file, change)).mode & 0o7777 == after
    await meta.setattr(file, SetAttr(mode=mode))
    assert (await meta.setattr(file, SetAttr(size=3))).mode & 0o7777 == mode
    assert (await meta.open(file, truncate=True)).attr.mode & 0o7777 == mode
    kept = await meta.setattr(file, SetAttr(mode=mode, uid=9, gid=9))
    assert (kept.mode & 0o7777, kept.uid, kept.gid) == (mode, 9, 9)
    folder = (await meta.mkdir(ROOT_INO, b"d", mode, ME)).ino
    assert (await meta.setattr(folder, SetAttr(uid=5))).mode & 0o7777 == mode


async def test_mtime_moves_with_the_size_or_by_opening_with_truncation(meta: MetaStore) -> None:
    file = await make_file(meta, ROOT_INO, b"f")
    first = await meta.setattr(file, SetAttr(size=5))
    same = await meta.setattr(file, SetAttr(size=5))
    assert same == first
    other = await meta.setattr(file, SetAttr(size=0))
    assert other.mtime_ns > same.mtime_ns
    opened = (await meta.open(file, truncate=True)).attr
    assert opened.mtime_ns > other.mtime_ns
    assert opened.ctime_ns >= opened.mtime_ns


async def test_a_file_of_nothing_but_holes_grows_to_the_largest_size(meta: MetaStore) -> None:
    file = await make_file(meta, ROOT_INO, b"f")
    for size in (1 << 20, MAX_FILE_SIZE, 5, MAX_FILE_SIZE, 0):
        grown = await meta.setattr(file, SetAttr(size=size))
        assert (grown.size, grown.holes) == (size, size)


async def test_only_files_have_a_size_to_set(meta: MetaStore) -> None:
    link = (await meta.symlink(ROOT_INO, b"l", b"t", ME)).ino
    with pytest.raises(errors.IsDirectory):
        await meta.setattr(ROOT_INO, SetAttr(size=0))
    with pytest.raises(errors.InvalidArgument):
        await meta.setattr(link, SetAttr(size=0))
    file = await make_file(meta, ROOT_INO, b"f")
    with pytest.raises(errors.FileTooBig):
        await meta.setattr(file, SetAttr(size=1 << 63))
    assert (await meta.setattr(file, SetAttr(size=(1 << 63) - 1))).size == (1 << 63) - 1


# -- extended attributes --


async def test_extended_attributes(meta: MetaStore, other: MetaStore) -> None:
    file = await make_file(meta, ROOT_INO, b"f")
    before: Attr = await meta.getattr(file)
    await meta.setxattr(file, b"user.b", b"1", XattrFlags.CREATE)
    await meta.setxattr(file, b"user.a", b"")
    assert await other.getxattr(file, b"user.b") == b"1"
    assert await other.getxattr(file, b"user.a") == b""
    assert await other.listxattr(file) == [b"user.a", b"user.b"]
    with pytest.raises(errors.Exists):
        await meta.setxattr(file, b"user.b", b"2", XattrFlags.CREATE)
    with pytest.raises(errors.NoData):
        await meta.setxattr(file, b"user.c", b"2", XattrFlags.REPLACE)
    await meta.setxattr(file, b"user.b", b"\0" * 65536, XattrFlags.REPLACE)
    assert await other.getxattr(file, b"user.b") == b"\0" * 65536
    await meta.removexattr(file, b"user.b")
    for call in (meta.getxattr, meta.removexattr):
        with pytest.raises(errors.NoData):
            await call(file, b"user.b")
        with pytest.raises(errors.NotFound):
            await call(NOWHERE, b"user.b")
    assert (await meta.getattr(file)).ctime_ns > before.ctime_ns


async def test_extended_attributes_have_limits(meta: MetaStore) -> None:
    file = await make_file(meta, ROOT_INO, b"f")
    with pytest.raises(errors.ArgumentTooBig):
        await meta.setxattr(file, b"user.a", b"x" * 65537)
    for name in (b"", b"x" * 256, b"a\0"):
        with pytest.raises(errors.OutOfRange):
            await meta.setxattr(file, name, b"x")
    with pytest.raises(errors.InvalidArgument):
        await meta.setxattr(file, b"user.a", b"x", XattrFlags.CREATE | XattrFlags.REPLACE)
    with pytest.raises(errors.NotFound):
        await meta.setxattr(NOWHERE, b"user.a", b"x")
    with pytest.raises(errors.NotFound):
        await meta.listxattr(NOWHERE)
    assert await meta.listxattr(file) == []
    for n in range(256):
        await meta.setxattr(file, b"%03d" % n + b"x" * 252, b"")
    with pytest.raises(errors.NoSpace):
        await meta.setxattr(file, b"user.more", b"")
    await meta.setxattr(file, b"000" + b"x" * 252, b"again")


# -- quota --


async def test_quota_of_inodes_is_exact(meta_volume: MetaVolume, meta: MetaStore) -> None:
    await meta_volume.limit(None, 3)
    await meta.mkdir(ROOT_INO, b"d", 0o755, ME)
    await meta.symlink(ROOT_INO, b"l", b"t", ME)
    file = (await meta.create_unlinked(0o600, ME)).attr.ino
    with pytest.raises(errors.QuotaExceeded):
        await meta.create(ROOT_INO, b"x", 0o600, ME, exclusive=False)
    with pytest.raises(errors.QuotaExceeded):
        await meta.mkdir(ROOT_INO, b"x", 0o700, ME)
    with pytest.raises(errors.QuotaExceeded):
        await meta.create_unlinked(0o600, ME)
    use = await meta.statfs()
    assert (use.inodes_used, use.inodes_limit) == (3, 3)
    await let_go(meta, file)
    await meta.mkdir(ROOT_INO, b"x", 0o700, ME)
