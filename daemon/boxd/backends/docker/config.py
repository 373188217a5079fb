"""Builds the configuration of a box's container for the Docker Engine API. Pure functions.

The decisions of `bundle` apply here too: the agent as init on its own runtime, rights, system call
filter, masks and limits. The API cannot express everything, so some settings differ: /run/box and
/.box are read-only but not `nosuid` (`no_new_privs` makes that harmless). The root is not `nodev`
(a box cannot create device nodes, and the engine's device list allows none).
/etc/{hostname,hosts,resolv.conf} are mounts, so a box can write to them, but cannot replace them.

The image's own run settings are overridden: entry point, command, user, working directory, health
check, stop signal and the init's environment. Sessions get the image's environment.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.backends.network.fence import DNS_ADDRESSES
from boxd.backends.oci import bundle

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from boxd.backends.interface import BoxPlan

INSTALLATION = "boxd.installation"
"""Label: the installation (6 hexadecimal digits) of a container."""
BOX = "boxd.box"
"""Label: the box id of a container."""
IMAGE = "boxd.image"
"""Label: the installation that imported an image."""

SESSION_ENVIRONMENT_MAX = 65_536
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Properties of the engine on which the configuration depends.

    `nofile` is the limit of open files per process. `cgroup_parent` is the cgroup of the
    containers' cgroups, or None for the engine's default.
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
    """Return the body of the request that creates a box's container from an image id."""
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


def session_environment(image_environment: Iterable[str]) -> dict[str, str]:
    """Return the variables of an image's environment with which its sessions start.

    The result omits names that a shell cannot hold, and everything after SESSION_ENVIRONMENT_MAX
    characters: with a huge environment no program can start. PATH also gets the directory of boxd's
    own commands.
    """
    variables: dict[str, str] = {}
    room = SESSION_ENVIRONMENT_MAX
    for entry in image_environment:
        name, equals, value = entry.partition("=")
        room -= len(entry)
        if equals and room >= 0 and _NAME.fullmatch(name) and "\0" not in value:
            variables[name] = f"{value}:{bundle.RUNTIME_DIR}/bin" if name == "PATH" else value
    return variables


def _environment(image_environment: Iterable[str]) -> list[str]:
    """Return the init's environment, without the image's, which could preload code into the agent.

    A name without a value removes the image's variable.
    """
    ours = {entry.partition("=")[0] for entry in bundle.ENVIRONMENT}
    theirs = {entry.partition("=")[0] for entry in image_environment}
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
            "net.ipv6.conf.default.disable_ipv6": "1",  # for the link, which is added later
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
    if plan.oci_runtime:
        config["Runtime"] = plan.oci_runtime
    if facts.cgroup_parent is not None:
        config["CgroupParent"] = facts.cgroup_parent
    return config


def _bind(destination: str, source: Path) -> dict[str, Any]:
    """Return a read-only bind mount: writes would go to the host's disk, uncounted."""
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": destination,
        "ReadOnly": True,
        "BindOptions": {"Propagation": "private", "NonRecursive": True},
    }
