"""The OCI configuration of a box: what its processes may see, do and use. Pure.

`no_new_privs` is on: everything in a box starts as its root, so nothing there needs set-uid
programs to gain rights. The seccomp profile is `seccomp.json` (an allow-list; what the notes below
name is refused on purpose):

- `clone3` and `io_uring_*` answer ENOSYS, so that libraries fall back: a filter cannot see the
  flags of clone3, and io_uring runs operations behind the filter (and cannot be suspended);
- `clone` and `unshare` with namespace flags, `setns`, the mount family, keyrings, bpf, perf,
  userfaultfd, kexec, modules, clock setting and handles of files answer EPERM;
- sockets are AF_UNIX, AF_INET, AF_INET6 and netlink for routes and socket diagnosis; the others
  are "not supported", which programs expect (`su` goes on without the audit socket);
- 32-bit programs run under the same list, without `socketcall` (ENOSYS), which hides the family.

A box that mounts its drive itself (`fuse`) gets /dev/fuse, CAP_SYS_ADMIN and the system calls of
`FUSE_CALLS` on top. The agent keeps the capability for itself; who gets hold of the agent has it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.fence import DNS_ADDRESSES

if TYPE_CHECKING:
    from boxd.backends.interface import BoxPlan

RUNTIME_DIR = "/.box"
RUN_DIR = "/run/box"
DRIVE_DIR = "/wrk"
INIT = (
    f"{RUNTIME_DIR}/lib/ld-linux-x86-64.so.2",
    "--library-path",
    f"{RUNTIME_DIR}/lib",
    f"{RUNTIME_DIR}/bin/python3",
    "-m",
    "box_guest",
)
"""The init of every box: the guest agent on the runtime's own loader, so any image will do."""

CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
MASKED_PATHS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/bpf",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/kernel/tracing",
)
HIDDEN_UNDER = "/sys/"
"""Masked directories below it show an empty directory of the host. runc itself would mount a tmpfs
at each, and CRIU packs and unpacks every tmpfs by a program of its own: 10 to 20 ms for each
suspension, and as much for each resume. Below /proc runc lets nobody mount anything."""
READONLY_PATHS = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
)
SYSCTLS = {
    "net.ipv4.ping_group_range": "0 2147483647",
    "net.ipv6.conf.eth0.disable_ipv6": "1",
}
"""Of the box's network namespace."""
ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LANG=C.UTF-8",
)

FUSE_DEVICE: dict[str, Any] = {
    "path": "/dev/fuse",
    "type": "c",
    "major": 10,
    "minor": 229,
    "fileMode": 0o600,
    "uid": 0,
    "gid": 0,
}
FUSE_CALLS = ("fsopen", "fsconfig", "fsmount", "move_mount", "umount2")
"""What `box_guest.fusefs` needs."""

OOM_SCORE_ADJ = 500
"""Above the daemon's 0: when the host runs short, boxes go first."""
CPU_PERIOD_US = 10_000
"""In which a box gets its time: the shorter, the shorter are the bursts in which it takes all
processors, and the rests after them, in which a process that kernels before 6.18 stop while it
holds a lock keeps who waits for that. *Measured* on two processors with Linux 6.18, p99 of execs
beside a box whose forks are refused, medians: 50 ms with periods of 100 ms, 27 with 20, 21 with 10,
26 with 5; within three times the quiet one (7 ms) in 4 trials of 44, 27 of 42, 34 of 36 and 29 of
41. One to four busy processes of a box got as much as with 100 ms, but for 0 to 4 %; with many
processors it is not measured."""
_LONGEST_CPU_PERIOD_US = 1_000_000
"""The kernel's own limit."""
CPU_SHARES_PER_CPU = 1024
MIN_CPU_QUOTA_US = 1_000
"""The kernel's own limit."""
MIN_CPU_SHARES = 2
MIB = 1024 * 1024
NOFILE = 65_536
"""Open files per process, where the host's own limit allows it."""
TERMINALS = 256
"""Of one box; all boxes and the host's own instances share some thousands."""
RUN_SIZE = 64 * MIB
SHM_SHARE = 2
"""Shared memory files take at most one part in this many of the box's memory."""
_HIDDEN = ("nosuid", "nodev", "noexec")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What of the host the configuration depends on.

    `nofile` is the most open files that this host lets a process have, `caps_swap` whether the
    kernel counts swap per cgroup. `hidden` are those masked paths below HIDDEN_UNDER that are
    directories here.
    """

    nofile: int
    caps_swap: bool
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """The box's objects on the host: mounted root, network namespace, cgroup, and a directory that
    stays empty."""

    root: Path
    netns: Path
    cgroup: str
    empty: Path


def config(
    plan: BoxPlan,
    places: Places,
    facts: HostFacts,
    init: tuple[str, ...] = INIT,
    *,
    fuse: bool = False,
) -> dict[str, Any]:
    """The content of config.json. `fuse`: the box mounts its drive itself."""
    return {
        "ociVersion": "1.0.2",
        "process": _process(init, facts, fuse=fuse),
        "root": {"path": str(places.root), "readonly": False},
        "hostname": plan.hostname,
        "mounts": _mounts(plan) + [_bind(one, places.empty, *_HIDDEN) for one in facts.hidden],
        "linux": {
            "namespaces": [
                {"type": "mount"},
                {"type": "pid"},
                {"type": "ipc"},
                {"type": "uts"},
                {"type": "cgroup"},
                {"type": "network", "path": str(places.netns)},
            ],
            "cgroupsPath": places.cgroup,
            "resources": _resources(plan, facts, fuse=fuse),
            "rootfsPropagation": "private",
            "seccomp": seccomp(fuse=fuse),
            **({"devices": [FUSE_DEVICE]} if fuse else {}),
            "maskedPaths": [one for one in MASKED_PATHS if one not in facts.hidden],
            "readonlyPaths": list(READONLY_PATHS),
            "sysctl": SYSCTLS,
        },
    }


def hidden(host: Path = Path("/")) -> tuple[str, ...]:
    """Masked paths of this host, whose root is at `host`, that an empty directory can hide."""
    return tuple(
        one
        for one in MASKED_PATHS
        if one.startswith(HIDDEN_UNDER) and (host / one.lstrip("/")).is_dir()
    )


def etc_files(hostname: str) -> dict[str, str]:
    """Files of /etc that a new box gets."""
    servers = "".join(f"nameserver {address}\n" for address in DNS_ADDRESSES)
    return {
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\t{hostname}\n",
        "resolv.conf": servers,
    }


def seccomp(*, fuse: bool = False) -> dict[str, Any]:
    """The system call profile."""
    text = resources.files("boxd.backends").joinpath("seccomp.json").read_text()
    profile: dict[str, Any] = json.loads(text)
    if fuse:
        profile["syscalls"].append({"names": list(FUSE_CALLS), "action": "SCMP_ACT_ALLOW"})
    return profile


def cpu_quota(plan: BoxPlan) -> tuple[int, int]:
    """Microseconds of CPU time that the box gets, and the period in which it gets them.

    That is CPU_PERIOD_US, longer where the quota would fall below MIN_CPU_QUOTA_US.
    """
    least = MIN_CPU_QUOTA_US / plan.cpus if plan.cpus else _LONGEST_CPU_PERIOD_US
    period = min(max(CPU_PERIOD_US, round(least)), _LONGEST_CPU_PERIOD_US)
    return max(MIN_CPU_QUOTA_US, round(plan.cpus * period)), period


def cpu_shares(plan: BoxPlan) -> int:
    """The box's weight beside other boxes when the CPUs are wanted by many."""
    return max(MIN_CPU_SHARES, round(plan.cpus * CPU_SHARES_PER_CPU))


def _process(init: tuple[str, ...], facts: HostFacts, *, fuse: bool) -> dict[str, Any]:
    capabilities = [*CAPABILITIES, "CAP_SYS_ADMIN"] if fuse else list(CAPABILITIES)
    files = min(NOFILE, facts.nofile)
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0, "umask": 0o022},
        "args": list(init),
        "env": list(ENVIRONMENT),
        "cwd": "/",
        "capabilities": {
            "bounding": capabilities,
            "effective": capabilities,
            "permitted": capabilities,
            "inheritable": [],
            "ambient": [],
        },
        "rlimits": [
            {"type": "RLIMIT_NOFILE", "soft": files, "hard": files},
            {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
        ],
        "noNewPrivileges": True,
        "oomScoreAdj": OOM_SCORE_ADJ,
    }


def _mounts(plan: BoxPlan) -> list[dict[str, Any]]:
    shm = plan.mem_mb * MIB // SHM_SHARE
    return [
        _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
        _mount("/dev", "tmpfs", "nosuid", "noexec", "strictatime", "mode=755", "size=65536k"),
        _mount(
            *("/dev/pts", "devpts", "nosuid", "noexec", "newinstance"),
            *("ptmxmode=0666", "mode=0620", f"max={TERMINALS}"),
        )
        | {"source": "devpts"},
        _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", f"size={shm}"),  # noqa: S108  the box's own
        _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        _mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", "ro"),
        _mount("/run", "tmpfs", "nosuid", "nodev", "mode=755", f"size={RUN_SIZE}"),
        _bind(RUNTIME_DIR, plan.runtime, "nosuid", "nodev"),
        _bind(RUN_DIR, plan.run_dir, "nosuid", "nodev", "noexec"),
    ]


def _mount(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


def _bind(destination: str, source: Path, *options: str) -> dict[str, Any]:
    """Read-only: what the box could write there would stand on the host's disk, uncounted."""
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["bind", "ro", "private", *options],
    }


def _resources(plan: BoxPlan, facts: HostFacts, *, fuse: bool) -> dict[str, Any]:
    limit = plan.mem_mb * MIB
    memory = {"limit": limit}
    if facts.caps_swap:
        memory["swap"] = limit  # memory and swap together: no swap
    devices: list[dict[str, Any]] = [{"allow": False, "access": "rwm"}]
    if fuse:
        numbers = {name: FUSE_DEVICE[name] for name in ("type", "major", "minor")}
        devices.append({"allow": True, "access": "rw", **numbers})
    quota, period = cpu_quota(plan)
    return {
        "devices": devices,
        "memory": memory,
        "cpu": {"quota": quota, "period": period, "shares": cpu_shares(plan)},
        "pids": {"limit": plan.pids},
    }
