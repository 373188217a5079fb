"""Rights of boxes that run containers: what Docker needs in the box's user namespace.

`extend` adds them to a box's configuration. The box's root then has, in its own namespaces only:

- capabilities for mounts and networks, and those that Docker gives its containers by default;
- the system calls in CALLS, `clone` and `unshare` with namespace flags, and netlink sockets for
  nftables. Keyrings return ENOSYS, so that runtimes continue without them;
- a writable /proc/sys, for the settings of its networks. The other settings belong to root of the
  host, so the box cannot write to them;
- a writable cgroup, in which the box creates its own (`hand_over`). The files with the box's limits
  belong to root of the host;
- at most MOST_NAMESPACES namespaces of each kind, and MOST_CGROUPS cgroups, because the memory
  limit of the box does not count most of their memory (`limit_namespaces`, `has_too_many_cgroups`);
- /dev/fuse, for fuse-overlayfs: the kernel cannot stack an overlay on the overlay of the box's
  root.

The masks stay. But root of the box can unmount them, so they protect only from its other users.

Nothing of this holds outside of the box's user namespace. The network fence is on the host. But
more of the kernel's code can be reached, as SECURITY.md says.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from boxd.backends.host.run import run

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.backends.host import cgroups
    from boxd.backends.host.id_ranges import IdRange

CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_MKNOD",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SYS_ADMIN",
)
"""Rights in the box's own user namespace, besides those of every box."""
CALLS = (
    "clone",
    "fsconfig",
    "fsmount",
    "fsopen",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "pivot_root",
    "setdomainname",
    "sethostname",
    "setns",
    "umount",
    "umount2",
    "unshare",
)
"""System calls that every box lacks."""
NO_KEYRINGS = ("add_key", "keyctl", "request_key")
_NETLINK, _NETFILTER, _LAST_NETLINK = 16, 12, 4
_EPROTONOSUPPORT, _ENOSYS = 93, 38
_CGROUPS = "/sys/fs/cgroup"
_SETTINGS = "/proc/sys"
_OWN_FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks")
"""Files of a cgroup that its new owner needs. None of them is a limit."""


MOST_NAMESPACES = 512
"""Namespaces of each kind that one user of a box may have."""
MOST_CGROUPS = 2000
"""Cgroups below those of the box, in all hierarchies.

*Measured*: with cgroup v1, 32,000 take 580 MB of the host's memory, of which 88 count for the box,
and a box creates them in 1.3 s.
"""
_KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "time", "uts")


def extend(config: dict[str, Any], fuse: dict[str, Any]) -> None:
    """Add the rights to the configuration of a box. `fuse` is the mount of its /dev/fuse."""
    for kind in ("bounding", "effective", "permitted"):
        rights = config["process"]["capabilities"]
        rights[kind] = sorted({*rights[kind], *CAPABILITIES})
    linux = config["linux"]
    _allow_calls(linux["seccomp"])
    linux["readonlyPaths"] = [path for path in linux["readonlyPaths"] if path != _SETTINGS]
    for mount in config["mounts"]:
        if mount["destination"] == _CGROUPS:
            mount["options"].remove("ro")
    if all(mount["destination"] != fuse["destination"] for mount in config["mounts"]):
        config["mounts"].append(fuse)


def hand_over(layout: cgroups.Layout, cgroup: str, ids: IdRange) -> None:
    """Give a box's cgroups to its root, except for the files with limits."""
    for root in layout.roots():
        directory = root / cgroup.lstrip("/")
        if directory.is_dir():
            _give(directory, ids.first)


async def limit_namespaces(pid: int) -> None:
    """Limit the namespaces of a box, from a process in its user namespace.

    Only a process with CAP_SYS_RESOURCE there can change the limits, and no process of the box has
    it. The box creates no user namespaces, in which its root would have all capabilities.
    """
    limits = {"user": 0} | dict.fromkeys(_KINDS, MOST_NAMESPACES)
    lines = [f"echo {n} >/proc/sys/user/max_{kind}_namespaces" for kind, n in limits.items()]
    await run("nsenter", "--user", f"--target={pid}", "sh", "-ec", "\n".join(lines))


def has_too_many_cgroups(layout: cgroups.Layout, cgroup: str) -> bool:
    """Return whether a box has more than MOST_CGROUPS cgroups below its own."""
    count = 0
    for root in layout.roots():
        for _, directories, _ in os.walk(root / cgroup.lstrip("/")):
            count += len(directories)
            if count > MOST_CGROUPS:
                return True
    return False


def _give(directory: Path, owner: int) -> None:
    os.chown(directory, owner, owner)
    for name in _OWN_FILES:
        if (directory / name).exists():
            os.chown(directory / name, owner, owner)


def _allow_calls(profile: dict[str, Any]) -> None:
    """Change a system call profile of `bundle.seccomp`."""
    rules = [rule for rule in profile["syscalls"] if rule["names"] not in (["clone"], ["unshare"])]
    unlisted = [
        {"index": 0, "value": _NETLINK, "op": "SCMP_CMP_EQ"},
        {"index": 2, "value": _LAST_NETLINK, "op": "SCMP_CMP_GT"},
    ]
    rules = [rule for rule in rules if rule.get("args") != unlisted]
    rules += [
        {"names": list(CALLS), "action": "SCMP_ACT_ALLOW"},
        {"names": list(NO_KEYRINGS), "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        _netlink("SCMP_ACT_ALLOW", "SCMP_CMP_EQ", _NETFILTER),
        _netlink("SCMP_ACT_ERRNO", "SCMP_CMP_GT", _NETFILTER),
    ]
    rules += [
        _netlink("SCMP_ACT_ERRNO", "SCMP_CMP_EQ", protocol)
        for protocol in range(_LAST_NETLINK + 1, _NETFILTER)
    ]
    profile["syscalls"] = rules


def _netlink(action: str, comparison: str, protocol: int) -> dict[str, Any]:
    """Return a rule for netlink sockets of some protocols."""
    rule: dict[str, Any] = {
        "names": ["socket"],
        "action": action,
        "args": [
            {"index": 0, "value": _NETLINK, "op": "SCMP_CMP_EQ"},
            {"index": 2, "value": protocol, "op": comparison},
        ],
    }
    if action == "SCMP_ACT_ERRNO":
        rule["errnoRet"] = _EPROTONOSUPPORT
    return rule
