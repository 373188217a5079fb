"""sftp and scp of the agent, through its tunnel."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import pytest

if TYPE_CHECKING:
    from tests.harness.agents.agent import LocalBox

ODD_NAME = "späße \n'\"$(x) \\"


@pytest.fixture
def place(local_box: LocalBox) -> Path:
    """A directory of the "box"."""
    path = local_box.root / "place"
    path.mkdir()
    return path


async def sftp_of(box: LocalBox) -> asyncssh.SFTPClient:
    """A client on a session channel of the tunnel."""
    return await (await box.tunnel()).connection.start_sftp_client()


async def test_files_go_both_ways(local_box: LocalBox, place: Path, tmp_path: Path) -> None:
    data = os.urandom(5_000_001)
    (tmp_path / "local").write_bytes(data)
    async with await sftp_of(local_box) as sftp:
        await sftp.put(str(tmp_path / "local"), str(place / ODD_NAME))
        assert (place / ODD_NAME).read_bytes() == data
        await sftp.get(str(place / ODD_NAME), str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == data
        assert ODD_NAME in await sftp.listdir(str(place))


async def test_large_file_is_whole(local_box: LocalBox, place: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256()
    with (place / "big").open("wb") as file:
        for _ in range(64):
            block = os.urandom(1 << 20)
            digest.update(block)
            file.write(block)
    async with await sftp_of(local_box) as sftp:
        await sftp.get(str(place / "big"), str(tmp_path / "big"))
    with (tmp_path / "big").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest.hexdigest()


async def test_attributes(local_box: LocalBox, place: Path) -> None:
    path = place / "file"
    path.write_bytes(b"12345")
    async with await sftp_of(local_box) as sftp:
        await sftp.chmod(str(path), 0o640)
        await sftp.truncate(str(path), 3)
        found = await sftp.stat(str(path))
    assert (found.size, stat.S_IMODE(found.permissions or 0)) == (3, 0o640)
    there = path.stat()
    assert there.st_size == 3
    assert stat.S_IMODE(there.st_mode) == 0o640


async def test_times_are_kept(local_box: LocalBox, place: Path) -> None:
    path = place / "file"
    path.touch()
    async with await sftp_of(local_box) as sftp:
        await sftp.utime(str(path), (1_000_000_000, 1_100_000_000))
        found = await sftp.stat(str(path))
    assert (found.atime, found.mtime) == (1_000_000_000, 1_100_000_000)
    assert path.stat().st_mtime == 1_100_000_000


async def test_links_and_renames(local_box: LocalBox, place: Path) -> None:
    (place / "file").write_bytes(b"new")
    (place / "old").write_bytes(b"old")
    async with await sftp_of(local_box) as sftp:
        await sftp.link(str(place / "file"), str(place / "hard"))
        assert (place / "hard").samefile(place / "file")
        with pytest.raises(asyncssh.SFTPError):
            await sftp.rename(str(place / "file"), str(place / "old"))
        await sftp.posix_rename(str(place / "file"), str(place / "old"))
        assert (place / "old").read_bytes() == b"new"
        await sftp.remove(str(place / "old"))
        await sftp.mkdir(str(place / "dir"))
        await sftp.rmdir(str(place / "dir"))
    assert sorted(path.name for path in place.iterdir()) == ["hard"]


async def test_symlinks_have_the_order_of_openssh(local_box: LocalBox, place: Path) -> None:
    async with await sftp_of(local_box) as sftp:
        # asyncssh's client swaps the arguments for servers that call themselves OpenSSH only, so
        # its first is the server's second here.
        await sftp.symlink(str(place / "link"), "target/that/is/not")
        assert (place / "link").readlink() == Path("target/that/is/not")
        assert await sftp.readlink(str(place / "link")) == "target/that/is/not"


async def test_errors_are_told(local_box: LocalBox, place: Path) -> None:
    async with await sftp_of(local_box) as sftp:
        with pytest.raises(asyncssh.SFTPNoSuchFile):
            await sftp.stat(str(place / "missing"))
        with pytest.raises(asyncssh.SFTPError):
            await sftp.listdir(str(place / "missing"))
        with pytest.raises(asyncssh.SFTPError):
            await sftp.open(str(place), "wb")
        # And the session goes on.
        assert await sftp.listdir(str(place)) == [".", ".."]


async def test_relative_paths_start_at_home(local_box: LocalBox) -> None:
    async with await sftp_of(local_box) as sftp:
        assert await sftp.realpath(".") == str(Path("~root").expanduser())


async def test_statvfs(local_box: LocalBox, place: Path) -> None:
    async with await sftp_of(local_box) as sftp:
        found = await sftp.statvfs(str(place))
    assert (found.frsize or 0) * (found.blocks or 0) > 0


async def test_many_entries_are_listed(local_box: LocalBox, place: Path) -> None:
    for number in range(1000):
        (place / f"{number:04}").touch()
    async with await sftp_of(local_box) as sftp:
        names = await sftp.listdir(str(place))
    assert sorted(names) == [".", "..", *(f"{number:04}" for number in range(1000))]


async def test_sftp_session_ends_with_status_0(local_box: LocalBox) -> None:
    connection = (await local_box.tunnel()).connection
    process = await connection.create_process(subsystem="sftp", encoding=None)
    process.stdin.write(b"\0\0\0\5\1\0\0\0\3")
    assert (await process.stdout.read(4)) != b""
    process.stdin.write_eof()
    done = await process.wait()
    assert done.exit_status == 0


@pytest.mark.parametrize(
    "garbage",
    [b"\0\0\0\5\x07\0\0\0\3", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\5\1\0\0\0\3\0\0\0\1\5"],
)
async def test_nonsense_ends_its_own_channel_only(local_box: LocalBox, garbage: bytes) -> None:
    tunnel = await local_box.tunnel()
    process = await tunnel.connection.create_process(subsystem="sftp", encoding=None)
    process.stdin.write(garbage)
    process.stdin.write_eof()
    await process.wait()
    assert not tunnel.closed
    assert (await local_box.run("echo on")).stdout == b"on\n"


async def test_scp_without_a_scp_in_the_image(
    local_box: LocalBox, place: Path, tmp_path: Path
) -> None:
    data = os.urandom(300_000)
    (tmp_path / "local").write_bytes(data)
    connection = (await local_box.tunnel()).connection
    process = await connection.create_process(
        f"scp -t {place}", env={"PATH": "/nowhere"}, encoding=None
    )
    assert await process.stdout.read(1) == b"\0"
    process.stdin.write(b"C0644 %d copied\n" % len(data))
    assert await process.stdout.read(1) == b"\0"
    process.stdin.write(data + b"\0")
    assert await process.stdout.read(1) == b"\0"
    process.stdin.write_eof()
    done = await process.wait()
    assert done.exit_status == 0
    assert (place / "copied").read_bytes() == data
