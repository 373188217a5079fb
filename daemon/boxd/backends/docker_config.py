"""What a box's container is made of, in the words of the Docker Engine API. Pure.

Everything that `bundle` decides for a box holds here as well: the agent as init on its own runtime,
rights, system call filter, masks, caps. What the API cannot say differs: /run/box and /.box are
read-only but not `nosuid` (nothing gains rights there: `no_new_privs`), the root is not `nodev`
(no box may make device nodes, and the engine's device list lets none be used), and
/etc/{hostname,hosts,resolv.conf} are mounts, so that a box writes them but cannot replace them.

Whatever an image says about how it wants to run is overruled: entry point, command, user, working
directory, health check, stop signal and the init's environment. Sessions get its environment.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.backends import bundle
from boxd.backends.fence import DNS_ADDRESSES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from boxd.backends.interface import BoxPlan

INSTALLATION = "boxd.installation"
"""Label: the installation (6 hex digits) that a container belongs to."""
BOX = "boxd.box"
"""Label: the id of the box that a container is."""
IMAGE = "boxd.image"
"""Label: the installation that an image was imported by."""

SESSION_ENVIRONMENT_MAX = 65_536
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What of the engine the configuration depends on.

    `nofile` is the most open files that a process may have, `cgroup_parent` where the containers'
    cgroups are made (None: where the engine likes it).
    """

    nofile: int
    cgroup_parent: str | None


def container(
    plan: BoxPlan,
    installation: str,
    image: str,
    image_environment: Iterable[str],
    facts: EngineFacts,
    init: tuple[str, ...] = bundle.INIT,
) -> dict[str, Any]:
    """The body of the request that makes a box's container from an image's id."""
    return {
        "Image": image,
        "Hostname": plan.hostname,
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": list(init),
        "Cmd": [],
        "Env": _environment(image_environment),
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {INSTALLATION: installation, BOX: plan.box_id},
        "Tty": False,
        "OpenStdin": False,
        "HostConfig": _host_config(plan, facts),
    }


def session_environment(of_image: Iterable[str]) -> dict[str, str]:
    """What of an image's environment its sessions start from: that is what images set it for.

    Names that no shell could hold are left out, and everything behind SESSION_ENVIRONMENT_MAX
    characters: a huge one would keep every program from starting. Our commands stay on the path.
    """
    found: dict[str, str] = {}
    room = SESSION_ENVIRONMENT_MAX
    for entry in of_image:
        name, equals, value = entry.partition("=")
        room -= len(entry)
        if equals and room >= 0 and _NAME.fullmatch(name) and "\0" not in value:
            found[name] = f"{value}:{bundle.RUNTIME_DIR}/bin" if name == "PATH" else value
    return found


def _environment(of_image: Iterable[str]) -> list[str]:
    """The init's: ours, and nothing of the image's, which could preload code into the agent.

    A name without a value takes the image's variable away.
    """
    ours = {entry.partition("=")[0] for entry in bundle.ENVIRONMENT}
    theirs = {entry.partition("=")[0] for entry in of_image}
    return [*bundle.ENVIRONMENT, *sorted(theirs - ours - {""})]


def _host_config(plan: BoxPlan, facts: EngineFacts) -> dict[str, Any]:
    limit = plan.mem_mb * bundle.MIB
    files = min(bundle.NOFILE, facts.nofile)
    quota, period = bundle.cpu_quota(plan)
    config: dict[str, Any] = {
        "Init": False,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none"},
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": list(bundle.CAPABILITIES),
        "SecurityOpt": ["no-new-privileges=true", f"seccomp={json.dumps(bundle.seccomp())}"],
        "MaskedPaths": list(bundle.MASKED_PATHS),
        "ReadonlyPaths": list(bundle.READONLY_PATHS),
        "Memory": limit,
        "MemorySwap": limit,  # memory and swap together: no swap
        "CpuPeriod": period,
        "CpuQuota": quota,
        "CpuShares": bundle.cpu_shares(plan),
        "PidsLimit": plan.pids,
        "OomScoreAdj": bundle.OOM_SCORE_ADJ,
        "Ulimits": [
            {"Name": "nofile", "Soft": files, "Hard": files},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "Sysctls": {
            "net.ipv4.ping_group_range": "0 2147483647",
            "net.ipv6.conf.default.disable_ipv6": "1",  # for the link, which comes later
        },
        "ShmSize": limit // bundle.SHM_SHARE,
        "Tmpfs": {"/run": f"rw,exec,nosuid,nodev,mode=755,size={bundle.RUN_SIZE}"},
        "Mounts": [
            _bind(bundle.RUNTIME_DIR, plan.runtime),
            _bind(bundle.RUN_DIR, plan.run_dir),
        ],
        "Dns": [str(address) for address in DNS_ADDRESSES],
        "DnsSearch": ["."],  # none, instead of the host's
        "ExtraHosts": [f"{plan.hostname}:127.0.1.1"],
    }
    if facts.cgroup_parent is not None:
        config["CgroupParent"] = facts.cgroup_parent
    return config


def _bind(destination: str, source: Path) -> dict[str, Any]:
    """Read-only: what the box could write there would stand on the host's disk, uncounted."""
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": destination,
        "ReadOnly": True,
        "BindOptions": {"Propagation": "private", "NonRecursive": True},
    }
