"""Imports as people do them: forms of archives, directories, and what is refused."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import lzma
import os
import shutil
import socket
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadRequest, Unavailable
from boxd.images import build, importer
from boxd.images.unpack import Bounds
from tests.harness.boxes.tarballs import Tarball
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from boxd.images.importer import ImportResult


async def imported(source: Path, bounds: Bounds | None = None) -> ImportResult:
    """Imports into a directory beside the source; a failure leaves nothing there."""
    target = source.parent / "versions" / "one"
    try:
        return await importer.import_root(source, target, lambda _: None, bounds=bounds)
    except BaseException:
        assert os.listdir(target.parent) == []
        raise


def ran(*command: str, stdin: bytes = b"") -> bytes:
    """What a program writes."""
    return subprocess.run(command, input=stdin, stdout=subprocess.PIPE, check=True).stdout


def system() -> Tarball:
    """A small root with one of everything that is allowed."""
    return (
        Tarball()
        .directory("./")
        .system()
        .directory("home/me", uid=1000, gid=1001, mode=0o700)
        .file("home/me/f", b"hello", uid=1000, gid=1001, mode=0o640, mtime=1_000_000_000)
        .file("bin/su", b"x", mode=0o4755)
        .symlink("bin/bash", "sh")
        .link("bin/dash", "bin/sh")
        .fifo("home/me/pipe")
        .file("no/parents/named", b"made")
        .file("/absolute", b"below the root")
    )


async def test_what_an_archive_holds_arrives(tmp_path: Path) -> None:
    found = await imported(system().write(tmp_path / "a.tar"))
    root = found.root
    assert root == tmp_path / "versions" / "one"
    status = (root / "home/me/f").lstat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1000, 1001, 0o640)
    assert status.st_mtime == 1_000_000_000
    assert (root / "home/me/f").read_bytes() == b"hello"
    assert stat.S_IMODE((root / "home/me").lstat().st_mode) == 0o700
    assert stat.S_IMODE((root / "bin/su").lstat().st_mode) == 0o4755
    assert os.readlink(root / "bin/bash") == "sh"
    assert (root / "bin/dash").samefile(root / "bin/sh")
    assert (root / "home/me/pipe").is_fifo()
    assert (root / "no/parents/named").read_bytes() == b"made"
    assert (root / "absolute").read_bytes() == b"below the root"
    assert (found.entries, found.bytes, found.notes) == (11, 5 + 1 + 2 + 4 + 14, ())


async def test_every_root_has_the_places_that_boxes_need(tmp_path: Path) -> None:
    root = (await imported(Tarball().system().write(tmp_path / "a.tar"))).root
    assert {"dev", "proc", "run", "sys", "wrk", ".box", "tmp"} <= set(os.listdir(root))
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE(root.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"]
)
async def test_compressed_archives(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    source = tmp_path / "a"
    source.write_bytes(pack(system().data()))
    assert (await imported(source)).entries == 11


async def test_an_archive_compressed_by_zstd(tmp_path: Path) -> None:
    packed = ran("zstd", "-c", stdin=system().data())
    (tmp_path / "a.zst").write_bytes(packed)
    assert (await imported(tmp_path / "a.zst")).entries == 11
    (tmp_path / "cut.zst").write_bytes(packed[:-8])
    shutil.rmtree(tmp_path / "versions")
    with pytest.raises(BadRequest, match=r"cut\.zst"):
        await imported(tmp_path / "cut.zst")


async def test_without_zstd_it_is_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(build.ENVIRONMENT, "PATH", "/nowhere")
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 600)
    with pytest.raises(Unavailable, match="zstd is not installed"):
        await imported(tmp_path / "a.zst")


async def test_a_directory(tmp_path: Path) -> None:
    source = tmp_path / "root"
    (source / "bin").mkdir(parents=True)
    (source / "bin/sh").write_text("#!")
    (source / "bin/sh").chmod(0o755)
    os.link(source / "bin/sh", source / "bin/dash")
    (source / "bin/out").symlink_to("/etc/passwd")
    os.chown(source / "bin/sh", 7, 8)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(source / "socket"))
    found = await imported(source)
    assert (found.root / "bin/sh").stat().st_uid == 7
    assert (found.root / "bin/dash").samefile(found.root / "bin/sh")
    assert os.readlink(found.root / "bin/out") == "/etc/passwd"
    assert not (found.root / "socket").exists()
    assert (source / "bin/sh").exists()


async def test_what_stands_in_the_way_of_mounts_is_replaced(tmp_path: Path) -> None:
    archive = system().symlink("wrk", "/etc").symlink("run", "/home").file("proc", b"x")
    found = await imported(archive.symlink("dev", "bin").symlink("sys", "..").write(tmp_path / "a"))
    for name in ("wrk", "run", "proc", "dev", "sys"):
        assert (found.root / name).is_dir()
        assert not (found.root / name).is_symlink()
    assert "/wrk was a link: it is an empty directory now" in found.notes
    assert "/proc was a file: it is an empty directory now" in found.notes
    assert len(found.notes) == 5


async def test_later_entries_win(tmp_path: Path) -> None:
    archive = (
        Tarball()
        .system()
        .file("f", b"first")
        .file("f", b"second")
        .directory("d")
        .file("d/inside", b"x")
        .symlink("d", "bin")
        .symlink("l", "bin")
        .directory("l")
        .link("f", "f")
    )
    root = (await imported(archive.write(tmp_path / "a"))).root
    assert (root / "f").read_bytes() == b"second"
    assert os.readlink(root / "d") == "bin"
    assert (root / "l").is_dir()
    assert not (root / "l").is_symlink()


async def test_a_sparse_file_stays_sparse(tmp_path: Path) -> None:
    source = tmp_path / "root"
    (source / "bin").mkdir(parents=True)
    with (source / "big").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"middle")
    archive = tmp_path / "a.tar"
    archive.write_bytes(ran("tar", "-C", str(source), "--sparse", "-c", "."))
    big = (await imported(archive)).root / "big"
    assert big.stat().st_size == 64 << 20
    assert big.stat().st_blocks * 512 < 4 << 20
    assert big.read_bytes() == (source / "big").read_bytes()


# --- what is refused -------------------------------------------------------------------------


async def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(BadRequest, match="text is not a tar archive, as it is or compressed"):
        await imported(tmp_path / "text")


@pytest.mark.parametrize("kind", ["missing", "fifo"])
def test_what_is_neither_file_nor_directory(tmp_path: Path, kind: str) -> None:
    source = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(source)
    with pytest.raises(BadRequest, match=str(source)):
        importer.check_source(source)


async def test_a_directory_above_the_root_is_no_root(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is not the root of a system: none of bin, etc"):
        await imported(Tarball().directory("rootfs").directory("rootfs/bin").write(tmp_path / "a"))


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (Bounds(entries=10), "more than 10 entries"),
        (Bounds(file_bytes=1 << 20), "'big' is larger than the limit of 1 MiB"),
        (Bounds(total_bytes=1 << 20), "its files together are larger than 1 MiB"),
    ],
)
async def test_bounds_are_named(tmp_path: Path, bounds: Bounds, said: str) -> None:
    archive = system().file("big", b"x" * (3 << 19)).write(tmp_path / "a.tar")
    with pytest.raises(BadRequest, match=said):
        await imported(archive, bounds)


async def test_a_disk_that_is_nearly_full_is_not_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = system().write(tmp_path / "a.tar")
    monkeypatch.setattr(importer, "MIN_FREE", 1 << 60)
    with pytest.raises(Unavailable, match="make room first"):
        await imported(source)


async def test_an_import_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    pipe = tmp_path / "tree"
    pipe.mkdir()
    for number in range(5000):
        (pipe / f"f{number}").touch()
    task = asyncio.create_task(
        importer.import_root(pipe, tmp_path / "versions" / "one", lambda _: None)
    )
    versions = tmp_path / "versions"
    await until(lambda: bool(list(versions.glob(".unfinished-*/stage/f*"))))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(versions) == []


async def test_what_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "TIMEOUT", 0.0)
    with pytest.raises(BadRequest, match="takes longer than 0 s"):
        await imported(system().write(tmp_path / "a"))
