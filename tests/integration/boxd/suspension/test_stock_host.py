"""Boxes suspend on a host as systemd sets it up: /run is noexec, and all mounts are shared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import mounts

if TYPE_CHECKING:
    from boxd.backends.checkpoint import criu

HOST = """
mount --make-rshared /
mount -t tmpfs -o nosuid,nodev,noexec,mode=755 run /run
mkdir -p /run/netns /run/lock
exec "$@"
"""
DOCTOR_S = 120.0


def on_a_stock_host(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an own mount namespace that is set up like a host with systemd."""
    host = ["unshare", "--mount", "bash", "-euc", HOST, "host"]
    return subprocess.run(
        [*host, *command], capture_output=True, text=True, timeout=DOCTOR_S, check=False
    )


@pytest.mark.timeout(180)
def test_the_trial_of_criu_passes(tmp_path: Path, verdict: criu.Verdict) -> None:
    assert verdict.suspends
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    done = on_a_stock_host(sys.executable, "-m", "boxd", "doctor", "--state-dir", str(state))
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("suspend ")]
    assert line.split()[1] == "ok", line


@pytest.mark.timeout(180)
def test_a_box_with_a_drive_sleeps_and_wakes(verdict: criu.Verdict) -> None:
    assert verdict.suspends
    test = Path(__file__).with_name("test_suspend_drive.py")
    words = ("-q", "-p", "no:cacheprovider", f"{test}::test_changes_on_the_drive_are_seen")
    done = on_a_stock_host(sys.executable, "-m", "pytest", *words)
    assert done.returncode == 0, done.stdout


def test_new_mounts_are_private(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from boxd.backends.host import mounts; "
        "place = Path(sys.argv[1]); mounts.mount_memory(place, 0, 'mode=755'); "
        "mounts.mount_memory(place, mounts.REMOUNT | mounts.RDONLY, 'mode=755'); "
        "print(mounts.table(Path('/proc/self/mountinfo')))"
    )
    done = on_a_stock_host(sys.executable, "-c", program, str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = {mounts.unescape(row[4]): row for row in mounts.rows(done.stdout)}
    assert any(field.startswith("shared:") for field in rows["/"])
    assert not any(field.startswith("shared:") for field in rows[str(tmp_path)])
