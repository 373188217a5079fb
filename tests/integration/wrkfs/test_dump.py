"""`dump` and `load`: a volume comes back as it was, by our `load` and by the system's `tar`."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.harness.mounts.drive import fresh_volume
from wrkfs.errors import InvalidArgument, NotEmpty, WrkfsError
from wrkfs.fs import Filesystem
from wrkfs.meta.postgres.snapshot import Snapshot
from wrkfs.types import ROOT_INO, Caller, SetAttr
from wrkfs.upkeep import dump, load, spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tests.harness.servers.objectserver import ObjectServer
    from wrkfs.config import VolumeConfig
    from wrkfs.types import Attr, Ino

WHO = Caller(1000, 1001)
SPARSE_SIZE = 3 << 30
DEEP_SIZE = (1 << 20) + 4
ODD_NAME = b"\xff\xfe bl\xc3\xa4nk\n"
LONG_NAME = b"n" * 255


def silent(_done: int, _total: int) -> None:
    """No progress bar."""


@pytest.fixture
def empty(drive_database: str, objectserver: ObjectServer) -> Iterator[VolumeConfig]:
    """Another volume, to load into."""
    with fresh_volume(drive_database, objectserver) as config:
        yield config


async def fill(fs: Filesystem) -> None:
    """Everything that a volume can hold."""
    await put(fs, ROOT_INO, b"empty", [])
    await put(fs, ROOT_INO, b"small", [(0, b"tiny\n")])
    large = await put(fs, ROOT_INO, b"large", [(0, os.urandom(9_000_000))])
    await put(fs, ROOT_INO, b"sparse", [(1 << 20, bytes(511) + b"x"), (2 << 30, b"far!" * 40_960)])
    sparse = await fs.lookup(ROOT_INO, b"sparse")
    await fs.setattr(sparse.ino, SetAttr(size=SPARSE_SIZE))
    directory = await fs.mkdir(ROOT_INO, b"directory", 0o2770, WHO)
    deep = directory.ino
    for number in range(12):
        deep = (await fs.mkdir(deep, LONG_NAME[: 200 + number], 0o755, WHO)).ino
    await put(fs, deep, LONG_NAME, [(0, b"deep")])
    await put(fs, deep, b"sparse", [(1 << 20, b"deep")])
    await put(fs, directory.ino, ODD_NAME, [(0, b"odd")])
    await fs.link(large.ino, directory.ino, b"same as large")
    link = await fs.symlink(directory.ino, b"link", b"../" + ODD_NAME, WHO)
    await fs.link(link.ino, ROOT_INO, b"same link")
    fifo = await fs.mknod(ROOT_INO, b"fifo", stat.S_IFIFO | 0o640, 0, WHO)
    await fs.setattr(fifo.ino, SetAttr(atime_ns=123_456_789_012))
    await fs.mknod(ROOT_INO, b"device", stat.S_IFCHR | 0o600, os.makedev(259, 70_000), WHO)
    late = await fs.mknod(ROOT_INO, b"socket", stat.S_IFSOCK | 0o600, 0, WHO)
    await fs.setattr(late.ino, SetAttr(mtime_ns=2**63 - 1))
    await fs.setxattr(large.ino, b"user.binary", bytes(range(256)))
    await fs.setxattr(directory.ino, b"trusted.\xff", b"value\n")
    await fs.setattr(large.ino, SetAttr(mode=0o4711, uid=2**32 - 2, gid=7))
    await fs.setattr(sparse.ino, SetAttr(atime_ns=1, mtime_ns=-1_500_000_001))
    await fs.setattr(directory.ino, SetAttr(atime_ns=2, mtime_ns=2**40 * 10**6 + 999_999_999))
    await fs.setattr(ROOT_INO, SetAttr(mode=0o1777, uid=5))


async def put(fs: Filesystem, parent: Ino, name: bytes, pieces: list[tuple[int, bytes]]) -> Attr:
    """A file."""
    attr, handle = await fs.create(parent, name, 0o644, os.O_RDWR, WHO)
    for offset, data in pieces:
        await handle.write(offset, data)
    await handle.close()
    return attr


async def picture(fs: Filesystem) -> dict[bytes, dict[str, Any]]:
    """All that a program sees of a volume, but for ctime and the numbers of inodes."""
    found: dict[bytes, dict[str, Any]] = {}
    links: dict[int, bytes] = {}
    ahead = [(b"", await fs.getattr(ROOT_INO))]
    while ahead:
        path, attr = ahead.pop()
        seen: dict[str, Any] = {
            field: getattr(attr, field)
            for field in ("mode", "nlink", "uid", "gid", "rdev", "size", "mtime_ns")
        }
        if stat.S_ISFIFO(attr.mode):
            seen["atime_ns"] = attr.atime_ns  # of others it moves when they are read for this
        seen["xattrs"] = [
            (name, await fs.getxattr(attr.ino, name)) for name in await fs.listxattr(attr.ino)
        ]
        seen["same as"] = links.setdefault(attr.ino, path)
        if attr.is_symlink:
            seen["target"] = await fs.readlink(attr.ino)
        if attr.is_file:
            seen["content"] = await content(fs, attr)
        found[path] = seen
        if attr.is_dir:
            below = await fs.readdir(attr.ino, 0, 1000)
            ahead += sorted((path + b"/" + entry.name, entry.attr) for entry in below)[::-1]
    return found


async def content(fs: Filesystem, attr: Attr) -> list[tuple[int, bytes]]:
    """What is no hole, in pieces of at most 4 MiB."""
    handle = await fs.open(attr.ino, os.O_RDONLY)
    pieces = []
    for ref in sorted((await fs.file_map(attr.ino)).refs, key=lambda ref: ref.pos):
        for at in range(ref.pos, ref.pos + ref.length, 4 << 20):
            size = min(4 << 20, ref.pos + ref.length - at)
            pieces.append((at, await handle.read(at, size)))
    await handle.close()
    return pieces


async def tar(*arguments: str | Path) -> bytes:
    """What the system's tar writes."""
    process = await asyncio.create_subprocess_exec("tar", *arguments, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out


async def test_a_volume_comes_back_as_it_was(volume: VolumeConfig, empty: VolumeConfig) -> None:
    archive = io.BytesIO()
    fs = await Filesystem.connect(volume)
    try:
        await fill(fs)
        before = await picture(fs)
        done = await dump.dump(volume, fs, archive, copy_progress=silent, write_progress=silent)
        assert done.entries == len(before)
    finally:
        await fs.close()
    assert archive.tell() < 20 << 20, "holes are not written"
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r:") as read:
        assert not [name for name in read.getnames() if "GNUSparseFile" in name]
    archive.seek(0)
    fs = await Filesystem.connect(empty)
    try:
        assert (await load.load(fs, archive, progress=silent)).skipped == 0
        after = await picture(fs)
        assert after.keys() == before.keys()
        for path, seen in before.items():
            assert after[path] == seen, path
        with pytest.raises(NotEmpty):
            await load.load(fs, archive, progress=silent)
    finally:
        await fs.close()


ODD_ATTRIBUTES = {
    b"user.a=b": b"1",
    b"user.=": b"2=2",
    b"user.100%": b"3",
    b"user.%3D": b"4",
    b"user.%253D=%": b"5",
    b"user.new\nline": b"\n",
    b"user." + b"=" * 250: b"6",
}


async def test_attributes_of_any_name_come_back(
    volume: VolumeConfig, empty: VolumeConfig, tmp_path: Path
) -> None:
    """From a dump by `load`, by the system's tar, and from an archive of the system's tar."""
    fs = await Filesystem.connect(volume)
    try:
        file = await put(fs, ROOT_INO, b"file", [(0, b"x")])
        for name, value in ODD_ATTRIBUTES.items():
            await fs.setxattr(file.ino, name, value)
        with (tmp_path / "archive").open("wb") as out:
            await dump.dump(volume, fs, out, copy_progress=silent, write_progress=silent)
    finally:
        await fs.close()
    target = tmp_path / "target"
    target.mkdir()
    await tar("--xattrs", "--xattrs-include=*", "-xpf", tmp_path / "archive", "-C", target)
    shown = {
        os.fsencode(name): os.getxattr(target / "file", name)
        for name in os.listxattr(target / "file")
    }
    assert shown == ODD_ATTRIBUTES
    others = await tar("--xattrs", "-cpf", "-", "-C", target, "file")
    for archive in ((tmp_path / "archive").read_bytes(), others):
        fs = await Filesystem.connect(empty)
        try:
            await load.load(fs, io.BytesIO(archive), progress=silent)
            ino = (await fs.lookup(ROOT_INO, b"file")).ino
            names = await fs.listxattr(ino)
            assert {name: await fs.getxattr(ino, name) for name in names} == ODD_ATTRIBUTES
            await fs.unlink(ROOT_INO, b"file")
        finally:
            await fs.close()


async def test_names_in_a_dump_of_an_older_release_are_not_unescaped(
    volume: VolumeConfig, empty: VolumeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = io.BytesIO()
    fs = await Filesystem.connect(volume)
    try:
        file = await put(fs, ROOT_INO, b"file", [(0, b"x")])
        await fs.setxattr(file.ino, b"user.%3D%25", b"value")
        # As older releases wrote them.
        monkeypatch.setattr(dump, "escape", lambda name: name)
        monkeypatch.setattr(dump, "ESCAPED", "WRKFS.unknown")
        await dump.dump(volume, fs, archive, copy_progress=silent, write_progress=silent)
    finally:
        await fs.close()
    archive.seek(0)
    fs = await Filesystem.connect(empty)
    try:
        await load.load(fs, archive, progress=silent)
        ino = (await fs.lookup(ROOT_INO, b"file")).ino
        assert await fs.listxattr(ino) == [b"user.%3D%25"]
    finally:
        await fs.close()


async def test_a_sparse_file_of_an_older_dump_has_its_own_name(empty: VolumeConfig) -> None:
    """Older releases wrote the record of the entry's name behind that of the file's."""
    header = tarfile.TarInfo("short")
    table = b"2\n0\n512\n1000\n0\n".ljust(dump.BLOCK, b"\0")
    header.size = len(table) + dump.BLOCK
    header.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "./directory/sparse",
        "GNU.sparse.realsize": "1000",
        "path": "./directory/GNUSparseFile.0/sparse",
    }
    archive = dump.encode_header(header) + table + bytes([7]) * dump.BLOCK + bytes(2 * dump.BLOCK)
    fs = await Filesystem.connect(empty)
    try:
        await load.load(fs, io.BytesIO(archive), progress=silent)
        directory = await fs.lookup(ROOT_INO, b"directory")
        found = await fs.readdir(directory.ino, 0, 10)
        assert [(entry.name, entry.attr.size) for entry in found] == [(b"sparse", 1000)]
    finally:
        await fs.close()


async def test_the_systems_tar_reads_it(volume: VolumeConfig, tmp_path: Path) -> None:
    fs = await Filesystem.connect(volume)
    try:
        await fill(fs)
        with (tmp_path / "archive").open("wb") as out:
            await dump.dump(volume, fs, out, copy_progress=silent, write_progress=silent)
    finally:
        await fs.close()
    target = tmp_path / "target"
    target.mkdir()
    archive = tmp_path / "archive"
    await tar("--xattrs", "--xattrs-include=*", "-xpf", archive, "-C", target)
    assert (target / "small").read_bytes() == b"tiny\n"
    sparse = (target / "sparse").stat()
    assert (sparse.st_size, sparse.st_mtime_ns) == (SPARSE_SIZE, -1_500_000_001)
    assert sparse.st_blocks * 512 < 1 << 20
    large = (target / "large").stat()
    assert (large.st_nlink, large.st_uid, stat.S_IMODE(large.st_mode)) == (2, 2**32 - 2, 0o4711)
    assert (target / "directory/same as large").samefile(target / "large")
    assert os.getxattr(target / "large", "user.binary") == bytes(range(256))
    assert (target / "device").lstat().st_rdev == os.makedev(259, 70_000)
    odd = os.fsencode(target / "directory") + b"/" + ODD_NAME
    assert Path(os.fsdecode(odd)).read_bytes() == b"odd"
    assert [path.stat().st_size for path in target.rglob("sparse")] == [SPARSE_SIZE, DEEP_SIZE]
    assert (target / "socket").read_bytes() == b"", "tar has no sockets"


async def test_a_dump_shows_one_moment(volume: VolumeConfig) -> None:
    """Beside a writer that renames one file to and fro, there is exactly one of it."""
    fs = await Filesystem.connect(volume)
    other = await Filesystem.connect(volume)
    try:
        left = (await fs.mkdir(ROOT_INO, b"left", 0o755, WHO)).ino
        right = (await fs.mkdir(ROOT_INO, b"right", 0o755, WHO)).ino
        await put(fs, left, b"file", [(0, b"x" * 100_000)])

        async def move() -> None:
            here, there = left, right
            while True:
                await other.rename(here, b"file", there, b"file")
                here, there = there, here

        moving = asyncio.create_task(move())
        try:
            for _ in range(8):
                archive = io.BytesIO()
                await dump.dump(volume, fs, archive, copy_progress=silent, write_progress=silent)
                archive.seek(0)
                with tarfile.open(fileobj=archive) as read:
                    names = [name for name in read.getnames() if name.endswith("/file")]
                assert len(names) == 1, names
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
    finally:
        await other.close()
        await fs.close()


HOSTILE = (
    "UPDATE dentry SET name = '../../etc/passwd' WHERE name = 'small'",
    "UPDATE dentry SET name = '..' WHERE name = 'small'",
    "UPDATE dentry SET ino = 999999 WHERE name = 'small'",
    "UPDATE dentry SET ino = 1 WHERE name = 'directory'",
    "UPDATE inode SET mode = 12345 WHERE mode >> 12 = 8",
    "UPDATE inode SET size = -5 WHERE mode >> 12 = 8",
    "UPDATE inode SET uid = -5 WHERE mode >> 12 = 8",
    "UPDATE inode SET rdev = -5 WHERE mode >> 12 = 2",
    "DELETE FROM symlink",
    "UPDATE slice SET off = 9223372036854775807",
    "UPDATE slice SET checksums = '' WHERE NOT is_inline",
    "DELETE FROM inline",
)


async def archived(volume: VolumeConfig, snapshot: Snapshot) -> None:
    """Dumps what a transaction sees that will be undone."""
    with spool.Spool() as rows:
        await rows.fill(snapshot, silent)
        rows.index()
        await dump.archive(volume, rows, io.BytesIO(), silent)


async def test_hostile_rows_are_refused(volume: VolumeConfig) -> None:
    fs = await Filesystem.connect(volume)
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        await fill(fs)
        for statement in HOSTILE:
            undone = connection.transaction()
            await undone.start()
            assert not (await connection.execute(statement)).endswith(" 0")
            try:
                await archived(volume, Snapshot(connection))
            except WrkfsError:
                await undone.rollback()
            else:
                pytest.fail(f"dumped: {statement}")
    finally:
        await connection.close()
        await fs.close()


async def test_an_interrupted_load_can_be_run_again(
    volume: VolumeConfig, empty: VolumeConfig
) -> None:
    archive = io.BytesIO()
    fs = await Filesystem.connect(volume)
    try:
        await put(fs, ROOT_INO, b"one", [(0, b"1")])
        await put(fs, ROOT_INO, b"two", [(0, b"2" * 100_000)])
        await dump.dump(volume, fs, archive, copy_progress=silent, write_progress=silent)
    finally:
        await fs.close()
    whole = archive.getvalue()
    fs = await Filesystem.connect(empty)
    try:
        for cut in range(0, len(whole) - 1024, 5120):
            with pytest.raises(InvalidArgument):
                await load.load(fs, io.BytesIO(whole[:cut]), progress=silent)
        assert not (await load.load(fs, io.BytesIO(whole), progress=silent)).finished
        assert {entry.name for entry in await fs.readdir(ROOT_INO, 0, 10)} == {b"one", b"two"}
        # As if it had ended between the two moves.
        staging = (await fs.mkdir(ROOT_INO, load.STAGING, 0o700, WHO)).ino
        await fs.rename(ROOT_INO, b"two", staging, b"two")
        await fs.setxattr(staging, load.READ_WHOLE, b"{}")
        assert (await load.load(fs, io.BytesIO(), progress=silent)).finished
        assert {entry.name for entry in await fs.readdir(ROOT_INO, 0, 10)} == {b"one", b"two"}
    finally:
        await fs.close()


def hostile(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """An archive of one entry."""
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, link
    return header.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


@pytest.mark.parametrize(
    "archive",
    [
        b"no archive" * 100,
        hostile("../x"),
        hostile("a/../../x"),
        hostile("x", tarfile.LNKTYPE, "../../etc/passwd"),
        hostile("x", tarfile.LNKTYPE, "absent"),
        hostile("x", b"Z"),
        hostile("./"),
        hostile("a")[:-1024] + hostile("a/b"),
    ],
)
async def test_hostile_archives_are_refused(volume: VolumeConfig, archive: bytes) -> None:
    fs = await Filesystem.connect(volume)
    try:
        with pytest.raises(WrkfsError):
            await load.load(fs, io.BytesIO(archive), progress=silent)
        assert {entry.name for entry in await fs.readdir(ROOT_INO, 0, 10)} <= {load.STAGING}
    finally:
        await fs.close()


async def test_an_archive_of_another_program_is_loaded(
    volume: VolumeConfig, tmp_path: Path
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_text("content")
    (tmp_path / "a/link").symlink_to("/absolute")
    made = await tar("-czf", "-", "-C", tmp_path, "a/b/c", "a/link", "a/b/c")
    fs = await Filesystem.connect(volume)
    try:
        await load.load(fs, io.BytesIO(made), progress=silent)
        seen = await picture(fs)
        assert set(seen) == {b"", b"/a", b"/a/b", b"/a/b/c", b"/a/link"}
        assert seen[b"/a/b/c"]["content"] == [(0, b"content")]
        assert seen[b"/a/link"]["target"] == b"/absolute"
    finally:
        await fs.close()
