"""POSIX basics through a real mount on real stores."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess


@pytest.fixture
def wrk(mount: Callable[[], MountProcess]) -> Path:
    """A fresh drive, mounted."""
    return mount().path


def test_files(wrk: Path) -> None:
    file = wrk / "file"
    file.write_bytes(b"hello")
    assert file.read_bytes() == b"hello"
    with file.open("r+b") as opened:
        opened.seek(3)
        opened.write(b"LO!")
        opened.flush()
        opened.seek(0)
        assert opened.read() == b"helLO!"
    os.truncate(file, 2)
    assert file.read_bytes() == b"he"
    os.truncate(file, 5)
    assert file.read_bytes() == b"he\0\0\0"
    file.write_bytes(b"x")
    assert file.stat().st_size == 1


def test_open_flags(wrk: Path) -> None:
    file = wrk / "file"
    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    with pytest.raises(FileExistsError):
        os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    file.write_bytes(b"12345")
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)
    assert file.stat().st_size == 0
    os.close(descriptor)
    descriptor = os.open(file, os.O_WRONLY | os.O_SYNC)
    os.write(descriptor, b"synced")
    assert file.read_bytes() == b"synced"
    os.close(descriptor)
    with pytest.raises(IsADirectoryError):
        os.open(wrk, os.O_WRONLY)


def test_directories(wrk: Path) -> None:
    (wrk / "a/b/c").mkdir(parents=True)
    assert wrk.joinpath("a").stat().st_nlink == 3
    with pytest.raises(OSError, match="not empty"):
        (wrk / "a").rmdir()
    (wrk / "f").touch()
    with pytest.raises(NotADirectoryError):
        (wrk / "f").rmdir()
    (wrk / "a/b/c").rmdir()
    with pytest.raises(FileNotFoundError):
        (wrk / "a/b/c").stat()
    listed = subprocess.run(["ls", "-ai", wrk / "a"], capture_output=True, check=True, text=True)
    numbers = {
        name: int(ino) for ino, name in (line.split() for line in listed.stdout.splitlines())
    }
    assert numbers["."] == (wrk / "a").stat().st_ino
    assert numbers[".."] == wrk.stat().st_ino
    assert numbers["b"] == (wrk / "a/b").stat().st_ino


def test_a_large_directory_is_listed_once_while_it_changes(wrk: Path) -> None:
    for number in range(700):
        (wrk / f"f{number:04d}").touch()
    seen = []
    with os.scandir(wrk) as entries:
        for number, entry in enumerate(entries):
            seen.append(entry.name)
            if number % 100 == 0 and number < 700:
                (wrk / f"f{699 - number:04d}").unlink()
                (wrk / f"n{number}").touch()
    assert len(seen) == len(set(seen))
    left = {name for name in os.listdir(wrk) if name.startswith("f")}
    assert left <= set(seen)


def test_names_of_any_bytes(wrk: Path) -> None:
    root = os.fsencode(wrk)
    names = [bytes([byte]) for byte in range(1, 256) if byte not in b"./"] + [
        b"\xff" * 255,
        "ünïcödé ☃".encode(),
        b" leading",
        b"new\nline",
        b"...",
        b"back\\slash",
    ]
    for name in names:
        with open(root + b"/" + name, "wb") as file:
            file.write(name)
    assert sorted(os.listdir(root)) == sorted(names)
    for name in names:
        with open(root + b"/" + name, "rb") as file:
            assert file.read() == name
    with pytest.raises(OSError, match="too long"):
        open(root + b"/" + b"x" * 256, "wb").close()


def test_rename(wrk: Path) -> None:
    (wrk / "a").write_bytes(b"a")
    (wrk / "b").write_bytes(b"b")
    (wrk / "a").rename(wrk / "b")
    assert (wrk / "b").read_bytes() == b"a"
    assert not (wrk / "a").exists()
    (wrk / "d/e").mkdir(parents=True)
    with pytest.raises(OSError, match="Invalid argument"):
        (wrk / "d").rename(wrk / "d/e/d")
    (wrk / "d/e").rename(wrk / "e")
    assert (wrk / "d").stat().st_nlink == 2
    (wrk / "b").rename(wrk / "e/b")
    assert (wrk / "e/b").read_bytes() == b"a"


def test_renameat2_flags(wrk: Path) -> None:
    (wrk / "a").write_bytes(b"a")
    (wrk / "b").write_bytes(b"b")
    refused = subprocess.run(
        ["mv", "-n", "--", wrk / "a", wrk / "b"], capture_output=True, check=False
    )
    assert (wrk / "a").exists(), refused
    assert renameat2(wrk / "a", wrk / "b", 1) == errno.EEXIST
    assert renameat2(wrk / "a", wrk / "b", 2) == 0
    assert (wrk / "a").read_bytes() == b"b"
    assert (wrk / "b").read_bytes() == b"a"
    assert renameat2(wrk / "a", wrk / "none", 2) == errno.ENOENT
    assert renameat2(wrk / "a", wrk / "c", 4) == errno.EINVAL


def renameat2(old: Path, new: Path, flags: int) -> int:
    """The errno of renameat2(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    at = -100
    failed = libc.renameat2(at, os.fsencode(old), at, os.fsencode(new), flags)
    return ctypes.get_errno() if failed else 0


def test_links(wrk: Path) -> None:
    (wrk / "a").write_bytes(b"a")
    os.link(wrk / "a", wrk / "b")
    assert (wrk / "a").stat().st_nlink == 2
    assert (wrk / "a").stat().st_ino == (wrk / "b").stat().st_ino
    (wrk / "a").unlink()
    assert (wrk / "b").read_bytes() == b"a"
    (wrk / "s").symlink_to("b")
    assert os.readlink(wrk / "s") == "b"
    assert (wrk / "s").read_bytes() == b"a"
    (wrk / "dangling").symlink_to("x" * 255)
    assert not (wrk / "dangling").exists()
    (wrk / "long").symlink_to("x/" * 2000)
    assert os.readlink(wrk / "long") == "x/" * 2000


def test_attributes(wrk: Path) -> None:
    file = wrk / "f"
    file.write_bytes(b"x")
    file.chmod(0o4755)
    assert stat.S_IMODE(file.stat().st_mode) == 0o4755
    os.chown(file, 1234, 5678)
    found = file.stat()
    assert (found.st_uid, found.st_gid) == (1234, 5678)
    assert stat.S_IMODE(found.st_mode) == 0o755, "chown clears setuid"
    os.utime(file, ns=(1_000_000_007, 2_000_000_009))
    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (1_000_000_007, 2_000_000_009)
    with file.open("ab") as opened:
        opened.write(b"y")
        opened.flush()
        os.utime(file, ns=(5, 6))
    assert file.stat().st_mtime_ns == 6


def test_extended_attributes(wrk: Path) -> None:
    file = wrk / "f"
    file.touch()
    os.setxattr(file, "user.a", b"1")
    os.setxattr(file, "user.b", b"\0\xff" * 1000)
    assert sorted(os.listxattr(file)) == ["user.a", "user.b"]
    assert os.getxattr(file, "user.b") == b"\0\xff" * 1000
    with pytest.raises(FileExistsError):
        os.setxattr(file, "user.a", b"2", os.XATTR_CREATE)
    with pytest.raises(OSError, match="No data"):
        os.setxattr(file, "user.c", b"2", os.XATTR_REPLACE)
    os.removexattr(file, "user.a")
    with pytest.raises(OSError, match="No data"):
        os.getxattr(file, "user.a")
    with pytest.raises(OSError, match="not supported"):
        os.setxattr(file, "security.other", b"x")


def test_special_files(wrk: Path) -> None:
    os.mkfifo(wrk / "fifo")
    assert stat.S_ISFIFO((wrk / "fifo").stat().st_mode)
    os.mknod(wrk / "dev", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert (wrk / "dev").stat().st_rdev == os.makedev(1, 3)
    with pytest.raises(PermissionError):
        (wrk / "dev").read_bytes()


def test_permissions_are_checked(wrk: Path) -> None:
    file = wrk / "secret"
    file.write_bytes(b"x")
    file.chmod(0o600)
    denied = subprocess.run(["cat", file], user=65534, capture_output=True, check=False)
    assert b"Permission denied" in denied.stderr


def test_an_unlinked_file_stays_usable(wrk: Path) -> None:
    with (wrk / "f").open("w+b") as file:
        file.write(b"one")
        file.flush()
        (wrk / "f").unlink()
        assert os.fstat(file.fileno()).st_nlink == 0
        file.write(b"two")
        file.flush()
        file.seek(0)
        assert file.read() == b"onetwo"
        os.ftruncate(file.fileno(), 2)
        assert os.fstat(file.fileno()).st_size == 2
    assert os.listdir(wrk) == []


def test_a_big_file(wrk: Path) -> None:
    block = os.urandom(1 << 20)
    with (wrk / "big").open("wb") as file:
        for number in range(40):
            file.write(number.to_bytes(8, "big") + block[8:])
    with (wrk / "big").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for number in range(40):
            assert file.read(1 << 20) == number.to_bytes(8, "big") + block[8:]
        file.seek((7 << 20) - 3)
        assert file.read(11) == block[-3:] + (7).to_bytes(8, "big")


def test_a_sparse_file(wrk: Path) -> None:
    with (wrk / "sparse").open("w+b") as file:
        file.seek(10 << 30)
        file.write(b"end")
        file.flush()
        file.seek((10 << 30) - 5)
        assert file.read() == bytes(5) + b"end"
    os.truncate(wrk / "sparse", (1 << 63) - 1)
    assert (wrk / "sparse").stat().st_size == (1 << 63) - 1


def test_mmap(wrk: Path) -> None:
    with (wrk / "m").open("w+b") as file:
        file.write(bytes(100_000))
        file.flush()
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[70_000:70_005] = b"hello"
            mapped.flush()
            file.seek(70_000)
            assert file.read(5) == b"hello"
    assert (wrk / "m").read_bytes()[70_000:70_005] == b"hello"


def test_statfs_counts(wrk: Path) -> None:
    before = os.statvfs(wrk)
    (wrk / "f").write_bytes(bytes(1 << 20))
    after = os.statvfs(wrk)
    assert (before.f_bfree - after.f_bfree) * after.f_frsize == 1 << 20
    assert before.f_ffree - after.f_ffree == 1
    assert after.f_namemax == 255


def test_locks_between_processes_of_one_host(wrk: Path) -> None:
    (wrk / "lock").touch()
    with subprocess.Popen(
        ["flock", wrk / "lock", "sh", "-c", "echo held; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        busy: list[str | Path] = ["flock", "-n", wrk / "lock", "true"]
        assert subprocess.run(busy, check=False).returncode == 1
        holder.communicate(b"\n")
        until(lambda: subprocess.run(busy, check=False).returncode == 0)


def test_fsync_of_a_directory(wrk: Path) -> None:
    descriptor = os.open(wrk, os.O_RDONLY)
    (wrk / "f").touch()
    os.fsync(descriptor)
    os.close(descriptor)
