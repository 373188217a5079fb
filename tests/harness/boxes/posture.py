"""The posture of a box, and checks that every backend passes."""

from __future__ import annotations

import json
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.host import cgroups, id_maps
from boxd.backends.oci import bundle, mount_table
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.boxes.backend import BoxHost

REVIEWED = Path(__file__).parents[2] / "isolation/confinement/posture_runc.json"
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup", "user", "time")
STATUS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Umask")
OF_THE_KERNEL = frozenset({*bundle.MASKED_PATHS, *bundle.READONLY_PATHS})
BINDS = frozenset({"/.box", "/run/box", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"})
"""Bind mounts. Their type is that of the host's file system."""
MIB = 1024 * 1024


def posture(pid: int, command_pid: int) -> dict[str, Any]:
    """Return the posture of a box from its init and from a command in it."""
    return {
        "init": of_process(pid),
        "command": of_process(command_pid),
        "mounts": _mounts(pid),
        "devices": sorted(p.name for p in Path(f"/proc/{pid}/root/dev").iterdir()),
        "masked": [p for p in bundle.MASKED_PATHS if _masked(pid, p)],
    }


def asleep(pid: int) -> bool:
    """Return whether a process is a `sleep` that sleeps.

    Before that, it is a copy of the shell with the shell's descriptors, or it loads its libraries.
    """
    try:
        return " (sleep) S " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def of_process(pid: int) -> dict[str, Any]:
    """Return the rights of a process as the host sees them."""
    process = Path("/proc") / str(pid)
    status = dict(
        line.split(":\t", 1)
        for line in (process / "status").read_text().splitlines()
        if ":\t" in line
    )
    return {
        "own_namespaces": [
            name
            for name in NAMESPACES
            if os.readlink(process / "ns" / name) != os.readlink(f"/proc/self/ns/{name}")
        ],
        **{key: status[key] for key in STATUS},
        "ids": _ids(pid, " ".join(status[key] for key in ("Uid", "Gid", "Groups"))),
        "core_limit": list(resource.prlimit(pid, resource.RLIMIT_CORE)),
        "oom_score_adj": int((process / "oom_score_adj").read_text()),
        "descriptors": sorted(_descriptors(process)),
    }


def _ids(pid: int, words: str) -> list[str]:
    """Return ids as the box sees them, or "host" and the id for those of the host."""
    first = id_maps.of_process(pid)
    if first is None:
        return [f"host {word}" for word in words.split()]
    return [str(int(word) - first) for word in words.split()]


def _descriptors(process: Path) -> Iterator[str]:
    for name in os.listdir(process / "fd"):
        if int(name) != 10:  # Descriptor 10 is the shell's own script.
            with suppress(FileNotFoundError):  # The process may close a descriptor meanwhile.
                yield f"{name} {os.readlink(process / 'fd' / name).partition('[')[0]}"


def _mounts(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/mountinfo").read_text()
    lines = [_told(mount) for mount in mount_table.parse(text)]
    hierarchies = {line for line in lines if line.startswith("/sys/fs/cgroup/*")}
    return sorted([*hierarchies, *(line for line in lines if line not in hierarchies)])


def _told(mount: mount_table.Mount) -> str:
    """Return one line of the reviewed file.

    The options of the superblock count for masked directories, because only those options protect
    the host from writes there.
    """
    place, kind, options = mount.place, mount.kind, set(mount.options)
    if mount.root == "/null" and (kind == "devtmpfs" or mount.read_only):
        # That of the host in a new box, that of `masks` in a resumed one. A box can change neither.
        kind = "null"
    elif place in BINDS:
        kind = "bind"
    elif place.startswith("/sys/fs/cgroup/"):
        place = "/sys/fs/cgroup/*"
    elif place == "/sys/fs/cgroup":
        kind = "cgroup"
        options.discard("ro")  # A tmpfs covers read-only hierarchies in cgroup v1.
    elif place in bundle.MASKED_PATHS and not mount.root.endswith("/null") and mount.read_only:
        options.add("read-only-superblock")
    return " ".join([place, kind, *sorted(options), *mount.propagation])


def reviewed(file: Path = REVIEWED) -> dict[str, Any]:
    """Return the reviewed posture, limited to the paths that this kernel has."""
    content: dict[str, Any] = json.loads(file.read_text())
    content["mounts"] = [line for line in content["mounts"] if _is_here(line.split()[0])]
    return content


def _is_here(place: str) -> bool:
    if place == "/sys/fs/cgroup/*":
        return cgroups.detect().mode is not cgroups.Mode.V2
    return place not in OF_THE_KERNEL or Path(place).exists()


def _masked(pid: int, path: str) -> bool:
    """Return whether a box cannot read the host's file there, or this kernel has no such file."""
    inside = Path(f"/proc/{pid}/root{path}")
    if not Path(path).exists() or not inside.exists():
        return True
    if inside.is_dir():
        return not list(inside.iterdir())
    return inside.is_char_device() and os.stat(inside).st_rdev == os.makedev(1, 3)


async def posture_of_a_box(box_host: BoxHost, **changes: object) -> dict[str, Any]:
    """Return the posture of a new box and of a command in it. `changes` are of its plan."""
    box = await box_host.box(**changes)
    layout, cgroup, init = cgroups.detect(), box_host.cgroup(box), box_host.pid(box)
    await until(lambda: len(cgroups.pids_of(layout, cgroup)) == 2)  # The init and its own sleep.
    before = set(cgroups.pids_of(layout, cgroup))
    result = await box_host.run(box, "sh", "-c", "sleep 3600 </dev/null >/dev/null 2>&1 &")
    assert result.status == 0
    (command,) = set(cgroups.pids_of(layout, cgroup)) - before
    await until(lambda: asleep(command))
    return posture(init, command)


async def check_open_files_are_limited(box_host: BoxHost) -> None:
    """The box has a limit of open files."""
    box = await box_host.box()
    most = min(bundle.NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert resource.prlimit(box_host.pid(box), resource.RLIMIT_NOFILE) == (most, most)


async def check_memory_is_capped_and_only_the_hog_dies(box_host: BoxHost) -> None:
    """The memory limit kills only the process that exceeds it."""
    box, other = await box_host.box(mem_mb=64), await box_host.box()
    hog = "x = bytearray(200 * 1024 * 1024)"
    result = await box_host.python(box, hog)
    assert result.status == 137  # SIGKILL from the kernel
    assert await box_host.backend.oom_kills(box) == 1
    assert (await box_host.backend.stats(box)).oom_kills == 1
    assert await box_host.backend.oom_kills(other) == 0
    states = {one.box_id: one.running for one in await box_host.backend.list()}
    assert states == {box: True, other: True}
    assert (await box_host.run(box, "true")).status == 0
    assert (await box_host.python(other, hog)).status == 0


async def check_shared_memory_counts_and_is_bounded(box_host: BoxHost) -> None:
    """Shared memory counts towards the memory limit."""
    box = await box_host.box(mem_mb=64)
    result = await box_host.run(box, "dd", "if=/dev/zero", "of=/dev/shm/x", "bs=1M", "count=64")
    assert "No space left" in result.err
    result = await box_host.run(box, "dd", "if=/dev/zero", "of=/run/x", "bs=1M", "count=128")
    assert result.status != 0


async def check_caps_are_what_was_asked_for(box_host: BoxHost) -> None:
    """The cgroup has the limits of the plan."""
    box = await box_host.box(cpus=0.5, mem_mb=96, pids=77)
    wanted = {"memory": str(96 * MIB), "pids": "77"}
    if cgroups.detect().mode is cgroups.Mode.V2:
        wanted |= {"swap": "0", "cpu": "5000 10000"}
    else:
        wanted |= {"cpu": "5000", "of": "10000"}
        if cgroups.caps_swap(cgroups.detect()):
            wanted["swap"] = str(96 * MIB)
    assert caps(box_host, box) == wanted


def caps(host: BoxHost, box: str) -> dict[str, str]:
    """Return the limits of a box's cgroup from the kernel's files."""
    layout, cgroup = cgroups.detect(), host.cgroup(box)
    files = {"pids": ("pids", "pids.max")}
    if layout.mode is cgroups.Mode.V2:
        files |= {"memory": ("", "memory.max"), "swap": ("", "memory.swap.max")}
        files |= {"cpu": ("", "cpu.max"), "pids": ("", "pids.max")}
    else:
        files |= {"memory": ("memory", "memory.limit_in_bytes")}
        files |= {"cpu": ("cpu", "cpu.cfs_quota_us"), "of": ("cpu", "cpu.cfs_period_us")}
        if cgroups.caps_swap(layout):
            files["swap"] = ("memory", "memory.memsw.limit_in_bytes")
    return {
        what: (layout.directory(controller, cgroup) / name).read_text().strip()
        for what, (controller, name) in files.items()
    }
