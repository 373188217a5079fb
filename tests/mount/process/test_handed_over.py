"""A mount that somebody else made: the process serves its descriptor, and unmounts nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from box_guest.fuse import mounts as fuse_mounts
from tests.harness.mounts.drive import STOP_TIMEOUT, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess
    from wrkfs.config import VolumeConfig


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory to mount at, free of mounts afterwards."""
    place = tmp_path / "wrk"
    place.mkdir()
    yield place
    fuse_mounts.detach(place)


def serve(volume: VolumeConfig, device: int) -> subprocess.Popen[bytes]:
    """A process that serves the mount, which nobody else keeps open."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "box_guest.mount", "--credentials-fd", str(reader)]
    process = subprocess.Popen(
        [*command, "--fuse-fd", str(device)], stdout=subprocess.PIPE, pass_fds=(reader, device)
    )
    os.close(reader)
    os.close(device)
    os.write(writer, volume.to_json().encode())
    os.close(writer)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    return process


def test_it_is_the_same_drive(
    volume: VolumeConfig, mount: Callable[[], MountProcess], place: Path
) -> None:
    other = mount().path
    process = serve(volume, fuse_mounts.mount(place))
    (place / "here").write_bytes(b"one")
    assert (other / "here").read_bytes() == b"one"
    (other / "here").write_bytes(b"two")
    assert (place / "here").read_bytes() == b"two"
    with (place / "here").open("rb"):
        assert not fuse_mounts.unmount(place)
    assert fuse_mounts.unmount(place)
    assert process.wait(STOP_TIMEOUT) == 0
    assert list(place.iterdir()) == []


def test_the_end_of_the_process_keeps_what_was_written(
    volume: VolumeConfig, mount: Callable[[], MountProcess], place: Path
) -> None:
    process = serve(volume, fuse_mounts.mount(place))
    file = os.open(place / "open", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(file, b"x" * 100_000)
    fuse_mounts.detach(place)
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_TIMEOUT) == 0
    with pytest.raises(OSError, match="not connected"):
        os.close(file)
    assert (mount().path / "open").read_bytes() == b"x" * 100_000


def test_a_dead_one_is_replaced(volume: VolumeConfig, place: Path) -> None:
    process = serve(volume, fuse_mounts.mount(place))
    (place / "kept").write_bytes(b"one")
    process.kill()
    process.wait(STOP_TIMEOUT)
    until(lambda: not os.access(place / "kept", os.R_OK))
    again = serve(volume, fuse_mounts.mount(place))
    assert (place / "kept").read_bytes() == b"one"
    assert len(fuse_mounts.mounts_at(place)) == 1
    assert fuse_mounts.unmount(place)
    assert again.wait(STOP_TIMEOUT) == 0


def test_a_link_is_no_place(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "wrk").symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError):
        fuse_mounts.mount(tmp_path / "wrk")
    assert fuse_mounts.mounts_at(elsewhere) == []
