"""PX-2: sizes, depths and numbers at their limits; the volume's quota to the byte."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.harness.loop import run
from tests.harness.mounts.drive import send_changes, until
from tests.mount.posix.tree import Tree
from tests.mount.posix.twins import open_flags
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess
    from tests.mount.posix.tree import Call
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

pytestmark = [pytest.mark.figure("PX-2"), pytest.mark.timeout(300)]
MANY = 100_000
LIMIT = {
    "bytes": "UPDATE volume SET bytes_limit = {}",
    "inodes": "UPDATE volume SET inodes_limit = {}",
}
CALLER = Caller(0, 0)


def test_names_of_any_bytes(tree: Tree) -> None:
    dice = random.Random(1)
    allowed = bytes(byte for byte in range(1, 256) if byte != 0x2F)
    names = {bytes([byte]) for byte in allowed if byte != 0x2E}
    names |= {bytes(dice.choices(allowed, k=dice.choice((2, 17, 254, 255)))) for _ in range(100)}
    names |= {b"\xff" * 255, b"...", b" ", b"\n", "é".encode(), "é".encode(), b"a\\b", b"%2f"}
    for name in names:
        tree.ok("symlink", name, name)
    assert tree.ok("listdir", ".") == sorted(names)
    for name in names:
        assert tree.ok("readlink", name) == name
        tree.ok("unlink", name)
    assert tree.ok("listdir", ".") == []


def test_a_thousand_directories_deep(drive: Tree) -> None:
    drive.fresh()
    for _ in range(1000):
        drive.ok("mkdir", "d", 0o755)
        drive.ok("chdir", "d")
    drive.ok("written", "bottom", b"x", open_flags("CREAT", "WRONLY"))
    walk = os.fsencode("/".join([".."] * 1000))
    assert drive.ok("stat", walk)["ino"] == drive.here.stat().st_ino
    for _ in range(1000):
        drive.ok("chdir", "..")
    assert drive.ok("stat", ".")["ino"] == drive.here.stat().st_ino


def test_a_directory_cannot_go_below_itself_however_deep(drive: Tree) -> None:
    drive.fresh()
    path = "a"
    for depth in range(20):
        drive.ok("mkdir", path, 0o755)
        if depth:
            drive.no(errno.EINVAL, "rename", "a", f"{path}/x")
            drive.no(errno.EINVAL, "rename2", "a", path, 2)
            drive.no(errno.ENOTEMPTY, "rename", path, "a")
        path += "/a"


def test_sparse_files_of_any_size(drive: Tree) -> None:
    drive.fresh()
    for end in (5 << 30, 1 << 40, (1 << 63) - 4096):
        descriptor = drive.ok("open", "f", open_flags("CREAT", "RDWR"), 0o644)
        drive.ok("pwrite", descriptor, b"end", end)
        assert drive.ok("pread", descriptor, 10, end - 5) == bytes(5) + b"end"
        drive.ok("fsync", descriptor)
        drive.ok("close", descriptor)
        drive.has("f", size=end + 3)
        drive.ok("unlink", "f")
    descriptor = drive.ok("open", "f", open_flags("CREAT", "RDWR"), 0o644)
    drive.no(errno.EINVAL, "pwrite", descriptor, b"x", (1 << 63) - 1)
    drive.ok("pwrite", descriptor, b"x", (1 << 63) - 2)
    drive.ok("close", descriptor)
    drive.has("f", size=(1 << 63) - 1)
    drive.ok("unlink", "f")


def test_extended_attributes_at_their_limits(drive: Tree) -> None:
    drive.fresh()
    drive.make("file", "f")
    longest = b"user." + b"n" * 250
    drive.ok("setxattr", "f", longest, b"v")
    drive.no(errno.ERANGE, "setxattr", "f", longest + b"n", b"v")
    drive.ok("setxattr", "f", b"user.value", bytes(65536))
    assert drive.ok("getxattr", "f", b"user.value") == bytes(65536)
    drive.no(errno.E2BIG, "setxattr", "f", b"user.value", bytes(65537))
    drive.ok("setxattr", "f", b"user.empty", b"")
    assert drive.ok("getxattr", "f", b"user.empty") == b""
    fitting = 0
    while not drive.do("setxattr", "f", b"user.%0250d" % fitting, b"")[0]:
        fitting += 1
    assert 240 < fitting < 256
    assert len(drive.ok("listxattr", "f")) == fitting + 3
    drive.no(errno.ENOSPC, "setxattr", "f", b"user.%0250d" % fitting, b"")


def test_as_many_links_as_there_may_be(
    drive_database: str, volume: VolumeConfig, mount: Callable[[], MountProcess]
) -> None:
    path = mount().path
    (path / "f").touch()
    send_changes(path)
    run(_statement(drive_database, volume, "UPDATE inode SET nlink = 64999 WHERE nlink = 1"))
    os.link(path / "f", path / "g")
    assert (path / "f").stat().st_nlink == 65000
    with pytest.raises(OSError, match="Too many links"):
        os.link(path / "f", path / "h")
    run(_statement(drive_database, volume, "UPDATE inode SET nlink = 2 WHERE nlink = 65000"))


@pytest.mark.timeout(600)
def test_scans_of_a_huge_directory(
    volume: VolumeConfig, mount: Callable[[], MountProcess], figures: Figures
) -> None:
    """10^5 entries (CI: 10^4): what stays is seen once, whatever comes and goes meanwhile."""
    count = MANY if figures.long else MANY // 10
    run(_fill(volume, count))
    path = mount().path
    for seed in figures(ci=1, long=20):
        dice = random.Random(seed)
        stay = {f"{number:06}" for number in range(0, count, 2) if number % 10}
        seen: Counter[str] = Counter()
        with os.scandir(path) as scan:
            for number, entry in enumerate(scan):
                seen[entry.name] += 1
                if number % (count // 100) == 0:
                    _churn(path, dice, count)
        assert {name for name in stay if seen[name] != 1} == set()


def _churn(path: Path, dice: random.Random, count: int) -> None:
    """Removes, makes, renames and replaces odd entries and those that end in 0."""
    for _ in range(3):
        odd = dice.randrange(1, count, 2)
        (path / f"{odd:06}").unlink(missing_ok=True)
        (path / f"{dice.randrange(1, count, 2):06}").touch()
        (path / f"n{dice.randrange(10 * count)}").touch()
        tenth = path / f"{dice.randrange(0, count, 10):06}"
        if tenth.exists():
            tenth.rename(path / f"{dice.randrange(1, count, 2):06}")


@contextmanager
def limits(dsn: str, volume: VolumeConfig, path: Path, **limit: int) -> Iterator[Tree]:
    """A mounted volume with quotas."""
    run(_statement(dsn, volume, "UPDATE volume SET trash_seconds = 0"))
    for name, value in limit.items():
        run(_statement(dsn, volume, LIMIT[name].format(value)))
    tree = Tree("drive", path)
    tree.fresh()
    try:
        yield tree
    finally:
        tree.close()


def test_the_quota_of_inodes_is_exact(
    drive_database: str, volume: VolumeConfig, mount: Callable[[], MountProcess]
) -> None:
    with limits(drive_database, volume, mount().path, inodes=2 + 7) as tree:
        makers: list[Call] = [
            ("mkdir", "dir", 0o755),
            ("mkfifo", "fifo", 0o644),
            ("symlink", "x", "symlink"),
            ("opened", "file", open_flags("CREAT"), 0o644),
            ("mknod", "char", 0o20644, 5),
            ("bind", "socket"),
            ("mknod", "node", 0o644, 0),
        ]
        for call in makers:
            tree.ok(*call)
        assert tree.ok("statvfs", ".")[6] == 0
        for name, first, *rest in makers:
            paths = [first, "more"] if name == "symlink" else ["more", *rest]
            tree.no(errno.EDQUOT, str(name), *paths)
        tree.ok("link", "file", "another")
        tree.ok("rename", "file", "renamed")
        tree.ok("unlink", "fifo")
        tree.ok("mkdir", "instead", 0o755)
        tree.no(errno.EDQUOT, "mkdir", "more", 0o755)
        tree.ok("rename", "renamed", "node")
        tree.ok("mkdir", "freed", 0o755)
        tree.no(errno.EDQUOT, "mkdir", "more", 0o755)


def test_the_quota_of_bytes_is_exact(
    drive_database: str, volume: VolumeConfig, mount: Callable[[], MountProcess]
) -> None:
    with limits(drive_database, volume, mount().path, bytes=100_000) as tree:
        assert tree.ok("statvfs", ".")[2] == 100_000 // 4096  # what `df` calls the size
        tree.ok("written", "f", bytes(60_000), open_flags("CREAT", "WRONLY"))
        tree.ok("written", "g", bytes(40_000), open_flags("CREAT", "WRONLY"))
        assert tree.ok("statvfs", ".")[3] == 0
        tree.no(errno.EDQUOT, "written", "h", b"x", open_flags("CREAT", "WRONLY"))
        tree.no(errno.EDQUOT, "written", "f", b"x", open_flags("APPEND", "WRONLY"))
        tree.ok("written", "f", b"x" * 60_000)
        tree.has("f", size=60_000)
        tree.ok("truncate", "f", 59_999)
        tree.ok("written", "g", b"x", open_flags("APPEND", "WRONLY"))
        tree.no(errno.EDQUOT, "written", "g", b"x", open_flags("APPEND", "WRONLY"))
        tree.ok("unlink", "g")
        # The kernel tells of a last close in its own time, and until then the file is open.
        until(lambda: tree.ok("statvfs", ".")[3] == 40_001 // 4096)
        tree.ok("written", "f", b"x" * 40_001, open_flags("APPEND", "WRONLY"))
        tree.has("f", size=100_000)
        assert tree.ok("content", "f") == b"x" * 59_999 + b"x" * 40_001


async def _statement(dsn: str, volume: VolumeConfig, statement: str) -> None:
    connection = await asyncpg.connect(dsn, server_settings={"search_path": volume.schema})
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _fill(volume: VolumeConfig, count: int) -> None:
    """Makes empty files, many at a time."""
    meta = PostgresMeta(volume, kind="test")
    await meta.start()
    try:
        for first in range(0, count, 64):
            names = (f"{number:06}".encode() for number in range(first, min(first + 64, count)))
            await asyncio.gather(
                *(meta.mknod(ROOT_INO, name, 0o100644, 0, CALLER) for name in names)
            )
    finally:
        await meta.close()
