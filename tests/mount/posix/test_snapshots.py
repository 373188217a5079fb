"""Snapshots on real mounts: every change fails with EROFS, and every program can read."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.fsck import fsck_clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess
    from wrkfs.config import VolumeConfig

pytestmark = pytest.mark.promise("V6")
MIB = 1 << 20


@pytest.fixture
def wrkfs(volume: VolumeConfig, tmp_path: Path) -> Callable[..., str]:
    """The command on the test's volume; returns its output."""
    credentials = tmp_path / "credentials"
    credentials.write_text(volume.to_json())
    credentials.chmod(0o600)

    def call(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "wrkfs.cli", *arguments, "--credentials", str(credentials)],
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    return call


def refused(change: Callable[[], object]) -> int | None:
    """The errno of a change; None if it succeeds."""
    try:
        change()
    except OSError as error:
        return error.errno
    return None


def fill(path: Path) -> bytes:
    """Makes a directory `src` with everything that a tree can have; the bytes of its large file."""
    large = os.urandom(5 * MIB)
    (path / "src").mkdir(mode=0o750)
    (path / "src/small").write_bytes(b"small")
    (path / "src/large").write_bytes(large)
    os.link(path / "src/small", path / "src/second")
    (path / "src/link").symlink_to("small")
    os.setxattr(path / "src/small", "user.key", b"value")
    return large


def test_a_snapshot_shows_its_source(
    mount: Callable[[], MountProcess], wrkfs: Callable[..., str], volume: VolumeConfig
) -> None:
    path = mount().path
    large = fill(path)
    with (path / "src/open").open("wb", buffering=0) as file:
        file.write(b"bytes of an open file")
        os.fsync(file.fileno())
        made = wrkfs("snapshot", "create", "/src", "--name", "monday")
        assert "snapshot monday of '/src'" in made
    (path / "src/small").write_bytes(b"newer")
    shutil.rmtree(path / "src")

    top = path / ".snapshots/monday"
    assert os.listdir(path) == []
    assert os.listdir(path / ".snapshots") == ["monday"]
    assert sorted(os.listdir(top)) == ["large", "link", "open", "second", "small"]
    assert stat.S_IMODE(top.stat().st_mode) == 0o750
    assert (top / "small").read_bytes() == b"small"
    assert (top / "link").read_bytes() == b"small"
    assert (top / "large").read_bytes() == large
    assert (top / "open").read_bytes() == b"bytes of an open file"
    assert (top / "second").stat().st_ino == (top / "small").stat().st_ino
    assert os.getxattr(top / "small", "user.key") == b"value"
    fsck_clean(volume)


def test_every_change_of_a_snapshot_fails(
    mount: Callable[[], MountProcess], wrkfs: Callable[..., str], volume: VolumeConfig
) -> None:
    path = mount().path
    fill(path)
    wrkfs("snapshot", "create", "/src", "--name", "monday")
    top = path / ".snapshots/monday"
    for change in (
        lambda: (top / "new").touch(),
        lambda: (top / "new").mkdir(),
        lambda: (top / "new").symlink_to("x"),
        lambda: (top / "small").unlink(),
        lambda: top.rmdir(),
        lambda: (top / "small").rename(top / "new"),
        lambda: (top / "small").rename(path / "new"),
        lambda: os.open(top / "small", os.O_WRONLY),
        lambda: os.open(top / "small", os.O_RDWR | os.O_APPEND),
        lambda: os.truncate(top / "small", 0),
        lambda: (top / "small").chmod(0o777),
        lambda: os.chown(top / "small", 1, 1),
        lambda: os.utime(top / "small", (1, 1)),
        lambda: os.setxattr(top / "small", "user.new", b"x"),
        lambda: os.removexattr(top / "small", "user.key"),
        lambda: (path / ".snapshots").rename(path / "elsewhere"),
        lambda: (path / ".snapshots/new").mkdir(),
    ):
        assert refused(change) == errno.EROFS
    assert refused(lambda: os.link(top / "small", path / "new")) == errno.EXDEV
    assert refused(lambda: (path / ".snapshots").mkdir()) == errno.EEXIST
    removed = subprocess.run(
        ["rm", "-rf", path / ".snapshots"], capture_output=True, text=True, check=False, timeout=50
    )
    assert "Read-only file system" in removed.stderr
    assert (top / "small").read_bytes() == b"small"
    fsck_clean(volume)


def test_a_user_restores_from_a_snapshot(
    mount: Callable[[], MountProcess], wrkfs: Callable[..., str], volume: VolumeConfig
) -> None:
    path = mount().path
    large = fill(path)
    wrkfs("snapshot", "create", "/src", "--name", "monday")
    shutil.rmtree(path / "src")
    top = path / ".snapshots/monday"
    subprocess.run(["cp", "-a", top, path / "src"], check=True, timeout=50)
    assert (path / "src/large").read_bytes() == large
    (path / "src/small").write_bytes(b"restored files can change")
    shutil.rmtree(path / "src")

    assert "restored" in wrkfs("snapshot", "restore", "monday")
    assert (path / "src/small").read_bytes() == b"small"
    assert "cloned" in wrkfs("clone", "/src", "/copy")
    assert (path / "copy/large").read_bytes() == large
    assert "exists" in wrkfs("clone", "/src", "/copy", status=1)
    assert "monday" in wrkfs("snapshot", "ls")
    with (top / "large").open("rb") as open_file:
        assert "removed" in wrkfs("snapshot", "rm", "monday")
        assert open_file.read() == large
    assert os.listdir(path / ".snapshots") == []
    fsck_clean(volume)


def test_a_program_works_in_a_clone_while_its_source_changes(
    mount: Callable[[], MountProcess], wrkfs: Callable[..., str], volume: VolumeConfig
) -> None:
    one, two = mount().path, mount().path
    (one / "src").mkdir()
    for number in range(50):
        (one / f"src/{number}").write_bytes(b"%d" % number * 1000)
    assert len(os.listdir(two / "src")) == 50
    wrkfs("clone", "/src", "/copy")
    for number in range(50):
        (one / f"src/{number}").write_bytes(b"changed")
        assert (two / f"copy/{number}").read_bytes() == b"%d" % number * 1000
    shutil.rmtree(one / "src")
    with (two / "copy/7").open("r+b") as file:
        file.write(b"x")
    assert (one / "copy/7").read_bytes() == b"x" + (b"7" * 1000)[1:]
    shutil.rmtree(two / "copy")
    assert os.listdir(one) == []
    fsck_clean(volume)
