"""The mount process: options, SIGTERM, SIGKILL, stale mountpoints, refusals."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box_guest.fuse import tuning
from box_guest.mount import mountpoint as mounting
from tests.harness.mounts.drive import MountProcess, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.config import VolumeConfig


@pytest.fixture(autouse=True)
def from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the process itself: it is no fork of one that has loaded it."""
    monkeypatch.setattr(MountProcess, "LOADED", False)


def test_options_and_tuning(mount: Callable[[], MountProcess]) -> None:
    path = mount().path
    (line,) = (
        line for line in Path("/proc/mounts").read_text().splitlines() if f" {path} " in line
    )
    fields = line.split()
    assert fields[0] == "wrk"
    assert fields[2] == "fuse.wrkfs"
    assert {"nosuid", "nodev", "default_permissions", "allow_other"} <= set(fields[3].split(","))
    device = tuning.device(path)
    assert device is not None
    read_ahead = Path(f"/sys/class/bdi/{device}/read_ahead_kb").read_text().strip()
    assert read_ahead == str(tuning.READ_AHEAD_KB)
    control = tuning.control_files()
    assert control is not None
    name = device.partition(":")[2] + "/max_background"
    descriptor = os.open(name, os.O_RDONLY, dir_fd=control)
    assert int(os.read(descriptor, 20)) == tuning.MAX_BACKGROUND
    os.close(descriptor)
    os.close(control)


def test_sigterm_commits_and_unmounts(mount: Callable[[], MountProcess]) -> None:
    first = mount()
    with (first.path / "open").open("wb", buffering=0) as file:
        file.write(b"not closed")
    file = (first.path / "held").open("wb", buffering=0)
    file.write(b"held open")
    assert first.stop() == 0
    assert tuning.device(first.path) is None
    with pytest.raises(OSError, match="not connected"):
        file.write(b"more")
    with contextlib.suppress(OSError):
        file.close()
    first.start()
    assert (first.path / "open").read_bytes() == b"not closed"
    assert (first.path / "held").read_bytes() == b"held open"


def test_umount_from_outside_ends_the_process(mount: Callable[[], MountProcess]) -> None:
    first = mount()
    (first.path / "f").write_bytes(b"x")
    subprocess.run(["umount", first.path], check=True)
    assert first.wait() == 0


def test_every_closed_file_survives_sigkill(mount: Callable[[], MountProcess]) -> None:
    first = mount()
    sums = {}
    for number in range(60):
        data = os.urandom(number * number * 700)
        (first.path / f"f{number}").write_bytes(data)
        sums[f"f{number}"] = hashlib.sha256(data).hexdigest()
    unfinished = (first.path / "unfinished").open("wb", buffering=0)
    unfinished.write(b"lost or not, never torn")
    first.kill()
    with pytest.raises(OSError, match="not connected"):
        os.listdir(first.path)
    with contextlib.suppress(OSError):
        unfinished.close()
    first.start()
    for name, digest in sums.items():
        assert hashlib.sha256((first.path / name).read_bytes()).hexdigest() == digest
    assert (first.path / "unfinished").read_bytes() in (b"", b"lost or not, never torn")


def test_a_living_mount_is_not_replaced(
    mount: Callable[[], MountProcess], volume: VolumeConfig, tmp_path: Path
) -> None:
    path = mount().path
    credentials = tmp_path / "credentials"
    credentials.write_text(volume.to_json())
    credentials.chmod(0o600)
    again = run(str(path), "--credentials", str(credentials))
    assert again.returncode == 1
    assert b"already mounted" in again.stderr
    (path / "f").touch()


def test_credentials_that_others_can_read_are_refused(volume: VolumeConfig, tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(volume.to_json())
    credentials.chmod(0o644)
    refused = run(str(tmp_path / "mnt"), "--credentials", str(credentials))
    assert refused.returncode == 1
    assert b"chmod 600" in refused.stderr
    assert not (tmp_path / "mnt").exists()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"volume": "x"}'])
def test_broken_credentials_are_refused(tmp_path: Path, text: str) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(text)
    credentials.chmod(0o600)
    refused = run(str(tmp_path / "mnt"), "--credentials", str(credentials))
    assert refused.returncode == 1
    assert b"Traceback" not in refused.stderr


def test_a_file_in_the_way_is_refused(volume: VolumeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(mounting.MountpointError):
        mounting.prepare(tmp_path / "file")
    assert stat.S_ISREG((tmp_path / "file").stat().st_mode)


def test_secrets_stand_neither_in_argv_nor_in_the_environment(
    mount: Callable[[], MountProcess], volume: VolumeConfig
) -> None:
    process = mount()
    for name in ("cmdline", "environ"):
        text = Path(f"/proc/{process.pid}/{name}").read_bytes()
        assert volume.store.secret_key.encode() not in text
        assert volume.meta_dsn.encode() not in text


def test_a_killed_mount_is_noticed_by_the_database_and_replaced(
    mount: Callable[[], MountProcess],
) -> None:
    first, second = mount(), mount()
    (first.path / "f").write_bytes(b"x")
    first.kill()
    until(lambda: (second.path / "f").read_bytes() == b"x")
    (second.path / "f").write_bytes(b"y")
    first.start()
    assert (first.path / "f").read_bytes() == b"y"


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """A mount process that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "box_guest.mount", *arguments],
        capture_output=True,
        check=False,
        timeout=30,
    )
