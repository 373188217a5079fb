"""`wrkfs stat` and `wrkfs df` on a real volume."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.drive import MountProcess
    from wrkfs.config import VolumeConfig


@pytest.fixture
def credentials(volume: VolumeConfig, tmp_path: Path) -> Path:
    """The volume's credential file."""
    path = tmp_path / "credentials"
    path.write_text(volume.to_json())
    path.chmod(0o600)
    return path


def wrkfs(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    return subprocess.run(
        [sys.executable, "-m", "wrkfs.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def test_stat_tells_where_the_bytes_are(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    path = mount().path
    (path / "small").write_bytes(b"x")
    (path / "d").mkdir()
    (path / "d/big").write_bytes(bytes(200_000))
    (path / "link").symlink_to("small")
    small = wrkfs("stat", "--credentials", credentials, "/small")
    assert small.returncode == 0, small.stderr
    assert "of 1 in the database" in small.stdout
    big = wrkfs("stat", "--credentials", credentials, "d/big")
    assert "size      200000 (195.3 KiB)" in big.stdout
    assert "of 200000 in the store" in big.stdout
    assert "target    'small'" in wrkfs("stat", "--credentials", credentials, "link").stdout
    assert "directory" in wrkfs("stat", "--credentials", credentials).stdout


def test_df_counts(mount: Callable[[], MountProcess], credentials: Path) -> None:
    (mount().path / "f").write_bytes(bytes(3 << 20))
    shown = wrkfs("df", "--credentials", credentials)
    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[1][:3] == ["bytes", "3.0", "MiB"]
    assert rows[2][:3] == ["inodes", "1", "none"]


def test_errors_are_one_line(credentials: Path, tmp_path: Path) -> None:
    for arguments in (
        ("stat", "--credentials", credentials, "none"),
        ("stat", "--credentials", credentials, "../x"),
        ("df", "--credentials", tmp_path / "absent"),
    ):
        failed = wrkfs(*arguments)
        assert failed.returncode == 1
        assert failed.stderr.startswith("wrkfs: ")
        assert failed.stderr.count("\n") == 1
    assert wrkfs("df").returncode == 2
