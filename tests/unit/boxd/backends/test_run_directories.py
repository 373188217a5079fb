"""The directories that boxes share with the service."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from box_guest import protocol
from boxd.backends.run_directories import RunDirectories

if TYPE_CHECKING:
    from pathlib import Path

BOX, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def directories(tmp_path: Path) -> RunDirectories:
    return RunDirectories(tmp_path / "boxes")


async def test_nobody_else_can_read_a_run_directory(directories: RunDirectories) -> None:
    await directories.write(BOX, '{"name": "web"}', b"KEY")
    place = directories.path(BOX)
    files = {file.name: file.read_bytes() for file in place.iterdir()}
    assert files == {protocol.AGENT_CONFIG: b'{"name": "web"}', protocol.HOST_KEY: b"KEY"}
    modes = {stat.S_IMODE(one.stat().st_mode) for one in (place, *place.iterdir())}
    assert modes == {0o700, 0o600}


async def test_a_second_identity_replaces_the_first(directories: RunDirectories) -> None:
    await directories.write(BOX, "a longer configuration", b"A LONGER KEY")
    await directories.write(BOX, "{}", b"KEY")
    assert (directories.path(BOX) / protocol.HOST_KEY).read_bytes() == b"KEY"


async def test_only_ids_of_boxes_are_listed(directories: RunDirectories, tmp_path: Path) -> None:
    assert await directories.box_ids() == set()
    await directories.write(BOX, "{}", b"KEY")
    (tmp_path / "boxes" / OTHER).mkdir()  # an incomplete box
    (tmp_path / "boxes" / "lost+found").mkdir()
    assert await directories.box_ids() == {BOX, OTHER}
    assert await directories.exists(BOX)
    assert not await directories.exists(OTHER)


async def test_a_removal_leaves_nothing_and_can_be_repeated(directories: RunDirectories) -> None:
    await directories.write(BOX, "{}", b"KEY")
    for _ in range(2):
        await directories.remove(BOX)
        assert await directories.box_ids() == set()


async def test_a_new_socket_replaces_the_earlier_one(directories: RunDirectories) -> None:
    await directories.write(BOX, "{}", b"KEY")
    path = directories.path(BOX) / protocol.TUNNEL_SOCKET
    with await directories.bind(BOX) as first, await directories.bind(BOX) as second:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for one in (first, second):
            one.listen()
        # The whole path is longer than a socket's may be.
        directory = os.open(path.parent, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(f"/proc/self/fd/{directory}/{path.name}")
            second.settimeout(10)
            second.accept()[0].close()
        os.close(directory)


async def test_a_box_without_a_directory_has_no_socket(directories: RunDirectories) -> None:
    with pytest.raises(FileNotFoundError):
        await directories.bind(BOX)
