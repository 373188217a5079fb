"""The OCI configuration of a box: visibility, rights and limits of its processes. Pure functions.

A box has its own user namespace: its ids 0 to 65,535 are a range of the host's ids (`id_ranges`).
So root in a box has no rights on the host, and set-uid programs gain only the rights of the box's
root. On hosts without such namespaces, root in a box is root of the host, and `no_new_privs` is on.

The seccomp profile is `seccomp.json`, an allow-list. These refusals are deliberate:

- `clone3` and `io_uring_*` return ENOSYS, so that libraries fall back. A filter cannot see the
  flags of clone3. io_uring runs operations outside the filter, and cannot be suspended.
- `clone` and `unshare` with namespace flags, `setns`, the mount family, keyrings, bpf, perf,
  userfaultfd, kexec, modules, clock setting and file handles return EPERM.
- Sockets are AF_UNIX, AF_INET, AF_INET6, and netlink for routes and socket diagnosis. Others are
  "not supported", an error that programs handle (`su` continues without the audit socket).
- `socket` rejects MPTCP and every later protocol of AF_INET and AF_INET6 with EPROTONOSUPPORT:
  CRIU cannot dump an MPTCP socket, and Go and others use TCP after this error.
- `landlock_*` return ENOSYS, as on a kernel without Landlock. CRIU restores a confined process
  without its domain, and the kernel does not show domains to the host. With ENOSYS, a program at
  least detects that it is not confined.
- `fcntl` rejects F_NOTIFY, and `prctl` its options 59 to 66, with EINVAL; `modify_ldt` returns
  ENOSYS; all as on kernels without them. CRIU does not restore directory notifications, memory that
  is never writable and executable, system call dispatch, core scheduling and the LDT. The kernel
  does not show these to the host.
- `pkey_alloc` returns ENOSPC. `arch_prctl` rejects ARCH_SET_CPUID, and `prctl`
  PR_SET_SPECULATION_CTRL, with ENODEV; all as on processors without them. CRIU restores neither
  protection keys of memory, nor traps of CPUID, nor the mitigations of one process.
- 32-bit programs have the same list, without `socketcall` (ENOSYS), which hides the socket family.

A box that mounts its drive itself (`fuse`) also gets /dev/fuse, CAP_SYS_ADMIN and the system calls
in `FUSE_CALLS`. The agent keeps the capability to itself, but a program that takes over the agent
has it too.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.host.id_ranges import COUNT, IdRange
from boxd.backends.network.fence import DNS_ADDRESSES
from boxd.backends.oci import inner_containers, masks

if TYPE_CHECKING:
    from collections.abc import Mapping

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
"""The init of every box: the guest agent on the runtime's own loader, so it runs in any image."""

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
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/devices/virtual/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/bpf",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/kernel/slab",
    "/sys/kernel/tracing",
)
HIDDEN_UNDER = "/sys/"
"""Masked directories below this path show a directory of `masks`. runc itself would mount a tmpfs
at each. CRIU packs and unpacks every tmpfs with a separate program: 10 to 20 ms for each
suspension, and as much for each resume. Below /proc, runc allows no mounts."""
READONLY_PATHS = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
)
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
"""System calls that `box_guest.fuse.mounts` needs."""

OOM_SCORE_ADJ = 500
"""Above the daemon's 0: when the host is short of memory, the kernel kills box processes first."""
CPU_PERIOD_US = 10_000
"""Length of the period in which a box gets its quota of CPU time.

With a short period, a box takes all processors only in short bursts, and its pauses between them
are short. Before Linux 6.18, the kernel can pause a process that holds a lock. All waiters for the
lock then wait for the pause to end.

*Measured* on two processors with Linux 6.18, p99 of execs next to a box whose forks are refused,
medians: 50 ms with periods of 100 ms, 27 with 20, 21 with 10, 26 with 5. The p99 was within three
times that of a quiet host (7 ms) in 4 trials of 44, 27 of 42, 34 of 36 and 29 of 41. One to four
busy processes of a box got as much CPU time as with 100 ms, except for 0 to 4 %. Not measured with
many processors.
"""
_LONGEST_CPU_PERIOD_US = 1_000_000
"""Limit of the kernel."""
CPU_SHARES_PER_CPU = 1024
MIN_CPU_QUOTA_US = 1_000
"""Limit of the kernel."""
MIN_CPU_SHARES = 2
MIB = 1024 * 1024
NOFILE = 65_536
"""Open files per process, unless the host's own limit is lower."""
TERMINALS = 256
"""Terminals per box. The service raises the kernel's limit for all (`backends.host.shares`)."""
RUN_SIZE = 64 * MIB
SHM_SHARE = 2
"""Shared memory files may take 1/SHM_SHARE of the box's memory."""
_HIDDEN = ("nosuid", "nodev", "noexec")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Properties of the host on which the configuration depends.

    `nofile` is the host's limit of open files per process. `caps_swap`: the kernel accounts swap
    per cgroup. `hidden` are the masked paths below HIDDEN_UNDER that are directories on this host.
    `missing` are the masked and read-only paths that this kernel does not have.
    """

    nofile: int
    caps_swap: bool
    hidden: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """The box's objects on the host.

    They are the mounted root, the network namespace, the cgroup, and the top directory of the
    mounts that mask paths (`masks`). `sizes` maps kernel files that show the machine's size to
    files that report the box's limits (`lxcfs`). `run_dir` and `runtime` are the plan's
    directories, with the ids of the box's range.
    """

    root: Path
    netns: Path
    cgroup: str
    masks: Path
    run_dir: Path
    runtime: Path
    sizes: Mapping[str, Path] = field(default_factory=dict)


def config(
    plan: BoxPlan,
    places: Places,
    facts: HostFacts,
    init: tuple[str, ...] = INIT,
    *,
    fuse: bool = False,
    ids: IdRange | None = None,
) -> dict[str, Any]:
    """Return the content of config.json. With `fuse`, the box mounts its drive itself.

    With `ids`, the box has its own user namespace with this range, and runtimes create its network
    namespace in it. Without, root in the box is root of the host.
    """
    content = {
        "ociVersion": "1.0.2",
        "process": _process(init, facts, fuse=fuse, confined=ids is None),
        "root": {"path": str(places.root), "readonly": False},
        "hostname": plan.hostname,
        "mounts": _mounts(plan, places)
        + [_bind(path, masks.directory(places.masks, path), *_HIDDEN) for path in facts.hidden]
        + [_bind(path, source, *_HIDDEN) for path, source in places.sizes.items()]
        + [_bind(FUSE_DEVICE["path"], masks.fuse(places.masks))] * (fuse and ids is not None),
        "linux": {
            "namespaces": [
                {"type": "mount"},
                {"type": "pid"},
                {"type": "ipc"},
                {"type": "uts"},
                {"type": "cgroup"},
                *_own_namespaces(places, ids),
            ],
            **({} if ids is None else {"uidMappings": ids.oci, "gidMappings": ids.oci}),
            "cgroupsPath": places.cgroup,
            "resources": _resources(plan, facts, fuse=fuse or plan.containers),
            "rootfsPropagation": "private",
            "seccomp": seccomp(fuse=fuse),
            **({"devices": [FUSE_DEVICE]} if fuse and ids is None else {}),
            "maskedPaths": [
                path for path in MASKED_PATHS if path not in {*facts.hidden, *facts.missing}
            ],
            "readonlyPaths": [path for path in READONLY_PATHS if path not in facts.missing],
            **({"sysctl": sysctls(None)} if ids is None else {}),
        },
    }
    if plan.containers:
        inner_containers.extend(content, _bind(FUSE_DEVICE["path"], masks.fuse(places.masks)))
    return content


def sysctls(ids: IdRange | None) -> dict[str, str]:
    """Return the settings of a box's network namespace, with the host's ids of its groups.

    The service sets them when the box has its link. runc sets them for boxes without a range.
    """
    first = 0 if ids is None else ids.first
    last = 2**31 - 1 if ids is None else first + COUNT - 1
    return {
        "net.ipv4.ping_group_range": f"{first} {last}",
        "net.ipv6.conf.eth0.disable_ipv6": "1",
    }


def _own_namespaces(places: Places, ids: IdRange | None) -> list[dict[str, str]]:
    if ids is None:
        return [{"type": "network", "path": str(places.netns)}]
    return [{"type": "network"}, {"type": "user"}]


def range_of(config: dict[str, Any]) -> IdRange | None:
    """Return the range of ids in a configuration; None if the box has no user namespace."""
    mappings = config["linux"].get("uidMappings")
    return IdRange(mappings[0]["hostID"]) if mappings else None


def hidden(host: Path = Path("/")) -> tuple[str, ...]:
    """Return the masked paths that a directory of `masks` can hide. `host` is the host's root."""
    return tuple(
        path
        for path in MASKED_PATHS
        if path.startswith(HIDDEN_UNDER) and (host / path.lstrip("/")).is_dir()
    )


def missing(host: Path = Path("/")) -> tuple[str, ...]:
    """Return masked and read-only paths that the host with its root at `host` does not have.

    A box's configuration omits these paths. So every path that it names must be mounted over.
    """
    paths = (*MASKED_PATHS, *READONLY_PATHS)
    return tuple(path for path in paths if not (host / path.lstrip("/")).exists())


def etc_files(hostname: str) -> dict[str, str]:
    """Return the files of /etc that a new box gets, by name."""
    servers = "".join(f"nameserver {address}\n" for address in DNS_ADDRESSES)
    return {
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\t{hostname}\n",
        "resolv.conf": servers,
    }


def seccomp(*, fuse: bool = False) -> dict[str, Any]:
    """Return the system call profile. With `fuse`, it allows FUSE_CALLS too."""
    text = resources.files("boxd.backends.oci").joinpath("seccomp.json").read_text()
    profile: dict[str, Any] = json.loads(text)
    if fuse:
        profile["syscalls"].append({"names": list(FUSE_CALLS), "action": "SCMP_ACT_ALLOW"})
    return profile


@cache
def call_filter() -> str:
    """Return the digest of the system call profile."""
    text = resources.files("boxd.backends.oci").joinpath("seccomp.json").read_bytes()
    return hashlib.sha256(text).hexdigest()


def cpu_quota(plan: BoxPlan) -> tuple[int, int]:
    """Return the box's quota of CPU time and its period, both in microseconds.

    The period is CPU_PERIOD_US, or longer if the quota would fall below MIN_CPU_QUOTA_US.
    """
    least = MIN_CPU_QUOTA_US / plan.cpus if plan.cpus else _LONGEST_CPU_PERIOD_US
    period = min(max(CPU_PERIOD_US, round(least)), _LONGEST_CPU_PERIOD_US)
    return max(MIN_CPU_QUOTA_US, round(plan.cpus * period)), period


def cpu_shares(plan: BoxPlan) -> int:
    """Return the box's weight against other boxes when CPU time is short."""
    return max(MIN_CPU_SHARES, round(plan.cpus * CPU_SHARES_PER_CPU))


def _process(
    init: tuple[str, ...], facts: HostFacts, *, fuse: bool, confined: bool
) -> dict[str, Any]:
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
        "noNewPrivileges": confined,
        "oomScoreAdj": OOM_SCORE_ADJ,
    }


def _mounts(plan: BoxPlan, places: Places) -> list[dict[str, Any]]:
    shm = plan.mem_mb * MIB // SHM_SHARE
    return [
        _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
        _mount("/dev", "tmpfs", "nosuid", "noexec", "strictatime", "mode=755", "size=65536k"),
        _mount(
            "/dev/pts",
            "devpts",
            "nosuid",
            "noexec",
            "newinstance",
            "ptmxmode=0666",
            "mode=0620",
            f"max={TERMINALS}",
        )
        | {"source": "devpts"},
        _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", f"size={shm}"),  # noqa: S108  the box's own
        _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        _mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", "ro"),
        _mount("/run", "tmpfs", "nosuid", "nodev", "mode=755", f"size={RUN_SIZE}"),
        _bind(RUNTIME_DIR, places.runtime, "nosuid", "nodev"),
        _bind(RUN_DIR, places.run_dir, "nosuid", "nodev", "noexec"),
    ]


def _mount(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


def _bind(destination: str, source: Path, *options: str) -> dict[str, Any]:
    """Return a read-only bind mount: writes would go to the host's disk, uncounted."""
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
