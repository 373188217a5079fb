"""A simulated outage of the host of one installation: see `go_down`."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from boxd.backends.oci import masks
from tests.harness.mounts.drive import until
from tests.harness.service.footprint import Footprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.backends.host.names import HostNames

CGROUPS = Path("/sys/fs/cgroup")


def go_down(names: HostNames) -> None:
    """Kill every process of the installation, and remove all state that is not on a disk.

    The state directory remains, with its content in the page cache.
    """
    until(lambda: not _kill(names), 60)
    until(lambda: not _unmount(names), 30)
    for path in Path("/run/netns").glob(f"boxd-{names.instance}-*"):
        subprocess.run(["ip", "netns", "delete", path.name], check=True)
    for path in Path("/sys/class/net").glob(f"{names.link_prefix}*"):
        # The interface disappears with its namespace a moment later.
        subprocess.run(["ip", "link", "delete", path.name], check=False, capture_output=True)
    subprocess.run(["nft", "delete", "table", "inet", names.table], check=True)
    until(lambda: not any(_emptied(group) for group in _groups(names)), 30)
    masks.remove(names.masks)
    shutil.rmtree(names.runc_root.parent)
    until(lambda: not _left(names), 30)


def _kill(names: HostNames) -> bool:
    """Kill the processes; return whether there were any."""
    inside = f"{names.state_dir}/"
    members = {
        int(pid) for group in _groups(names) for pid in (group / "cgroup.procs").read_text().split()
    }
    found = False
    for process in psutil.process_iter(["pid", "cmdline", "cwd", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        words = [*(process.info["cmdline"] or []), process.info["cwd"] or ""]
        mine = any(inside in f"{word}/" for word in words)
        if mine or process.info["pid"] in members:
            found = True
            with suppress(psutil.NoSuchProcess):
                process.kill()
    return found


def _unmount(names: HostNames) -> bool:
    """Unmount the mounts; return whether there were any."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    places = (
        f"{names.state_dir}/",
        *(f"{top}/" for top in (names.lxcfs, names.mounts, names.users)),
    )
    mine = [place for place in mounts if place.startswith(places)]
    for place in sorted(mine, reverse=True):
        # Some mounts may already be ending.
        subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
    return bool(mine)


def _groups(names: HostNames) -> Iterator[Path]:
    """Yield all cgroups of the installation, inner ones first."""
    for top in (CGROUPS, *CGROUPS.glob("*/")):
        parent = top / names.cgroup_parent.strip("/")
        if parent.is_dir():
            yield from (path for path in sorted(parent.rglob("*"), reverse=True) if path.is_dir())
            yield parent


def _emptied(group: Path) -> bool:
    """Remove a cgroup; return whether it still exists."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _left(names: HostNames) -> bool:
    found = Footprint.of(names.state_dir, psutil.Process().pid)
    return any(
        (found.mounts, found.namespaces, found.links, found.cgroups, found.loops, found.rules)
    )
