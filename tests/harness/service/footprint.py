"""The objects of one installation on its host, to compare before and after many boxes."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from boxd.backends.host.names import HostNames
from boxd.config import Config
from tests.harness.service.processes import of_service

ROOM = 8
"""Normal variation of a daemon's descriptors: connections to its database and of its clients."""

_ELEMENTS = re.compile(r"elements = \{(.*?)\}", re.DOTALL)


@dataclass(frozen=True)
class Footprint:
    """Objects by kind, each a set of names. `descriptors` counts the daemon's open ones."""

    mounts: frozenset[str]
    namespaces: frozenset[str]
    links: frozenset[str]
    cgroups: frozenset[str]
    loops: frozenset[str]
    rules: frozenset[str]
    directories: frozenset[str]
    processes: frozenset[str]
    descriptors: int

    @classmethod
    def of(cls, state: Path, daemon: int) -> Footprint:
        """Return the present footprint of an installation whose daemon has this pid."""
        names = HostNames(Config(state_dir=state).instance, state.resolve())
        inside = f"{state.resolve()}/"
        mountinfo = Path("/proc/self/mountinfo").read_text().splitlines()
        return cls(
            mounts=frozenset(
                line.split()[4] for line in mountinfo if inside in line or f"{names.lxcfs}/" in line
            ),
            namespaces=frozenset(
                path.name for path in Path("/run/netns").glob(f"boxd-{names.instance}-*")
            ),
            links=frozenset(
                path.name for path in Path("/sys/class/net").glob(f"{names.link_prefix}*")
            ),
            cgroups=frozenset(_cgroups(names.cgroup_parent.strip("/"))),
            loops=frozenset(
                path.parts[3]
                for path in Path("/sys/block").glob("loop*/loop/backing_file")
                if path.read_text().startswith(inside)
            ),
            rules=frozenset(_rules(names.table)),
            directories=frozenset(
                str(path.relative_to(state))
                for folder in ("boxes", "disks", "memories", "snapshots")
                for path in (state / folder).glob("*")
            ),
            processes=frozenset(_processes(inside)),
            descriptors=sum(process.num_fds() for process in of_service(daemon)),
        )

    def more_than(self, before: Footprint) -> list[str]:
        """Return the objects that `before` does not have, one a line."""
        found = [
            f"{kind.name}: {item}"
            for kind in fields(self)
            if kind.name != "descriptors"
            for item in sorted(getattr(self, kind.name) - getattr(before, kind.name))
        ]
        if self.descriptors > before.descriptors + ROOM:
            found.append(f"descriptors: {self.descriptors}, before {before.descriptors}")
        return found


def _cgroups(parent: str) -> list[str]:
    tops = (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/"))
    return [str(path) for top in tops for path in (top / parent).glob("*/")]


def _rules(table: str) -> list[str]:
    """Return lines of the fence without its counters, and each element of its sets separately."""
    command = ["nft", "--stateless", "list", "table", "inet", table]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    elements = ",".join(_ELEMENTS.findall(text)).split(",")
    lines = _ELEMENTS.sub("", text).splitlines()
    return [word for line in (*lines, *elements) if (word := line.strip())]


def _processes(inside: str) -> list[str]:
    """Return processes except those of the database, which come and go with connections."""
    found = []
    for process in psutil.process_iter(["pid", "name", "cmdline", "cwd"]):
        words = " ".join(process.info["cmdline"] or [])
        if process.info["name"] == "postgres":
            continue
        if inside in words or (process.info["cwd"] or "").startswith(inside):
            found.append(f"{process.info['pid']} {words[:120]}")
    return found
