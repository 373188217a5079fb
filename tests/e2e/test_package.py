"""The Debian package: it installs on a fresh Debian, runs, upgrades, and goes.

A box lives on through the upgrade, and sleeps through the removal.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.machine import Machine, Visitor, debian, packages, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(1800)
OLD, NEW = "0.0.1", "99.0"
STATE = "/srv/state/boxd"
SETTINGS = "/etc/boxd/boxd.toml"
ENABLED = ("/boxd.service", "/boxd.service.dsh-also")
"""Ends of the paths that keep whether the unit is enabled, until the purge."""
PROGRAM = "sleep 98765"
BEGIN = f"{PROGRAM} >/dev/null 2>&1 & echo $! >/dev/shm/pid; echo drive >/wrk/file; echo disk >file"
LOOK = "cut -d' ' -f1,2,22 /proc/$(cat /dev/shm/pid)/stat; cat /wrk/file file"
"""Prints pid, name and start time of the program, and both files."""


@pytest.fixture(scope="module")
def debs() -> tuple[Path, Path]:
    """The package of the version before, and the one of this version."""
    old, new = packages(OLD, NEW)
    return old, new


@pytest.fixture(scope="module")
def machine(debs: tuple[Path, Path], image_rootfs: Path) -> Iterator[Machine]:
    """A fresh Debian with the image of boxes, so that the first start needs no network."""
    with running(debian(debs[0])) as made:
        images = made.place / "state" / "boxd" / "images" / "debian"
        images.mkdir(parents=True)
        (made.place / "state" / "boxd").chmod(0o700)
        (images / "rootfs").symlink_to(image_rootfs)
        yield made


@pytest.mark.promise("L2")
def test_the_life_of_the_package(machine: Machine, debs: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = debs
    before = _files(machine)
    machine.install(old)
    assert machine.run("boxd", "--version") == f"boxd {OLD}\n"
    _write_settings(machine)
    shown = machine.run("boxd", "config")
    assert f"state-dir            {STATE}" in shown
    machine.serve()
    user = Visitor(machine, tmp_path / "home")
    user.run("dev", BEGIN)
    begun = user.run("dev", LOOK)
    assert begun.endswith("drive\ndisk\n")
    # An upgrade: the daemon ends, the box does not.
    machine.stop()
    pid = machine.run("pgrep", "--full", PROGRAM)
    machine.install(new)
    assert machine.run("boxd", "--version") == f"boxd {NEW}\n"
    assert machine.run("pgrep", "--full", PROGRAM) == pid
    machine.serve()
    assert user.run("dev", LOOK) == begun
    assert machine.run("pgrep", "--full", PROGRAM) == pid
    # A removal: the box sleeps, and the user's files stay.
    text = machine.run("apt-get", "remove", "--yes", "boxd")
    assert f"To delete them for ever: rm -rf {STATE}" in text
    assert machine.wait() == 0
    _assert_nothing_runs(machine)
    left = {path for path in _files(machine) - before if not path.endswith(ENABLED)}
    assert left == {SETTINGS, "/etc/postgresql-common/createcluster.d/boxd.conf"}
    # It comes back with its memory. CRIU starts each process again, so its start time differs.
    machine.install(new)
    machine.serve()
    pid, *_, drive, disk = user.run("dev", LOOK).split()
    assert (pid, drive, disk) == (begun.split()[0], "drive", "disk")
    text = machine.run("apt-get", "purge", "--yes", "boxd")
    assert machine.wait() == 0
    _assert_nothing_runs(machine)
    assert _files(machine) == before
    assert machine.run("ls", f"{STATE}/boxes")


def test_the_units_are_valid(debs: tuple[Path, Path], tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    assert program is not None, "there is no systemd-analyze; run: scripts/setup dev"
    subprocess.run(["dpkg-deb", "--extract", str(debs[0]), str(tmp_path)], check=True)
    units = sorted((tmp_path / "lib/systemd/system").iterdir())
    assert [unit.name for unit in units] == ["boxd-boxes.service", "boxd.service"]
    for unit in units:
        # The commands of the package are not installed here.
        text = unit.read_text().replace("/usr/bin/boxd", str(tmp_path / "usr/bin/boxd"))
        unit.write_text(text)
    done = subprocess.run(
        [program, "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _write_settings(machine: Machine) -> None:
    """Change the packaged settings as an administrator does: the file must survive an upgrade."""
    text = machine.run("cat", SETTINGS)
    assert 'api-addr = "127.0.0.1:8080"\n' in text
    own = f'state-dir = "{STATE}"\nboxes-size = "1G"\nprepared-boxes = 0\n'
    (machine.shared / "settings").write_text(text + own)
    machine.run("cp", "/srv/shared/settings", SETTINGS)


def _files(machine: Machine) -> set[str]:
    """Files of the machine outside of the state and of what apt and the system write."""
    places = ("/etc", "/usr", "/lib", "/opt", "/var/lib/systemd", "/root")
    listed = machine.run("find", *places, "-xdev", "(", "-type", "f", "-o", "-type", "l", ")")
    passing = ("/etc/ld.so.cache", "/etc/mtab")
    return {line for line in listed.splitlines() if line not in passing}


def _assert_nothing_runs(machine: Machine) -> None:
    """No process, mount, network or packet filter of the service is left."""
    processes = machine.run("ps", "-e", "-o", "args=").splitlines()
    own = ("/usr/lib/boxd", "boxd serve", "postgres", STATE, PROGRAM)
    assert [line for line in processes if any(word in line for word in own)] == []
    mounts = machine.run("cat", "/proc/self/mountinfo")
    assert f"{STATE}/" not in mounts
    assert machine.run("ls", "/run/netns") == ""
    assert "boxd_" not in machine.run("nft", "list", "tables")
