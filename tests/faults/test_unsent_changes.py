"""The end of a mount with unsent changes: it sends them, or keeps them for the next mount."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from box_guest.fuse import tuning
from tests.harness.mounts.drive import MountProcess
from tests.harness.servers.detour import database_proxy, through_socket
from tests.harness.servers.fault_proxy import Toxic
from tests.harness.volumes.held_batches import HeldBatches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.servers.fault_proxy import FaultProxy
    from wrkfs.config import VolumeConfig

FILES = 10
"""Fewer than a mount has numbers for."""
OUTAGE = 9.0
"""Seconds of an outage: longer than a lease."""


@pytest.fixture
def database(volume: VolumeConfig, tmp_path: Path) -> Iterator[FaultProxy]:
    """Yield the way to the database, which the test can break."""
    proxy = database_proxy(volume, tmp_path)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.fixture
def drive(volume: VolumeConfig, database: FaultProxy, tmp_path: Path) -> Iterator[MountProcess]:
    """Yield a mount with a journal below `journals` and a delegated directory `home`."""
    config = through_socket(volume, database)
    made = MountProcess(config, tmp_path, "--journal", str(tmp_path / "journals"))
    try:
        (made.path / "home").mkdir()
        # The mount has then used what a change here needs: the delegation and numbers of inodes.
        (made.path / "home" / "first").write_bytes(b"first")
        yield made
    finally:
        database.toxic = Toxic()
        made.clean()


def unsent(journals: Path) -> int:
    """Return the size of what waits in journals."""
    return sum(path.stat().st_size for path in journals.glob("v*-*/[0-9]*"))


def change(drive: MountProcess) -> None:
    """Make files that the mount decides by itself."""
    for number in range(FILES):
        (drive.path / "home" / f"f{number}").write_bytes(b"%d" % number)


def assert_changed(drive: MountProcess) -> None:
    """Compare the files with `change`."""
    home = drive.path / "home"
    assert len(os.listdir(home)) == FILES + 1
    assert [(home / f"f{number}").read_bytes() for number in range(FILES)] == [
        b"%d" % number for number in range(FILES)
    ]


@pytest.mark.promise("D1")
@pytest.mark.parametrize("way", ["SIGTERM", "umount"])
def test_the_end_of_a_mount_sends_its_changes(
    drive: MountProcess, tmp_path: Path, way: str
) -> None:
    change(drive)
    if way == "umount":
        subprocess.run(["umount", "--no-canonicalize", drive.path], check=True, timeout=30)
    assert (drive.wait() if way == "umount" else drive.stop()) == 0
    assert list((tmp_path / "journals").iterdir()) == []
    drive.start()
    assert_changed(drive)
    assert "lost changes" not in drive.log.read_text()


@pytest.mark.promise("D1")
@pytest.mark.promise("D3")
@pytest.mark.parametrize("broken", ["gone", "black hole"])
@pytest.mark.parametrize("way", ["SIGTERM", "umount"])
def test_without_the_database_the_next_mount_sends_them(
    drive: MountProcess,
    database: FaultProxy,
    drive_database: str,
    tmp_path: Path,
    way: str,
    broken: str,
) -> None:
    """The end takes less than 30 s, the limit of `MountProcess`."""
    journals = tmp_path / "journals"
    with HeldBatches(drive_database, drive.config):
        change(drive)
        if broken == "gone":
            database.down()
        else:
            database.toxic = Toxic(black_hole=True)
    assert unsent(journals)
    if way == "umount":
        subprocess.run(
            ["umount", "--lazy", "--no-canonicalize", drive.path], check=True, timeout=30
        )
    # Exit status 1 tells that changes could not be sent.
    assert (drive.wait() if way == "umount" else drive.stop()) == 1
    assert tuning.device(drive.path) is None
    assert unsent(journals)
    if broken == "gone":
        database.up()
    else:
        database.toxic = Toxic()
        database.down()
        database.up()
    drive.start()
    assert_changed(drive)
    assert not list(journals.glob("lost-*"))
    assert "lost changes" not in drive.log.read_text()


@pytest.mark.promise("D3")
def test_a_short_outage_of_the_database_loses_nothing_of_a_holder(
    drive: MountProcess, database: FaultProxy, drive_database: str, tmp_path: Path
) -> None:
    """Both sessions have expired after it. The other one waits, and does not fence the holder."""
    (tmp_path / "other").mkdir()
    journals = tmp_path / "journals"
    options = ("--journal", str(tmp_path / "elsewhere"))
    other = MountProcess(drive.config, tmp_path / "other", *options)
    try:
        with HeldBatches(drive_database, drive.config):
            change(drive)
            database.down()
        assert unsent(journals)
        # The length of the outage is what this test is about.
        time.sleep(OUTAGE)
        database.up()
        assert_changed(other)
        assert not list(journals.glob("lost-*"))
        assert "lost changes" not in drive.log.read_text()
    finally:
        other.clean()
