"""Names that a box's objects have on the host, and the places of its files. Pure.

Every name carries the installation's 6 hex digits, so that two installations on one host never
take each other's objects for their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LINK_FAMILY = "bx"
"""Every box link of every installation on a host starts with this."""


@dataclass(frozen=True, slots=True)
class HostNames:
    """Names of host objects of one installation."""

    instance: str
    state_dir: Path

    @property
    def table(self) -> str:
        """The nftables table (family inet)."""
        return f"boxd_{self.instance}"

    @property
    def link_prefix(self) -> str:
        """What the host ends of all boxes' links start with."""
        return f"{LINK_FAMILY}{self.instance}-"

    @property
    def cgroup_parent(self) -> str:
        """The cgroup above the boxes' cgroups, in every hierarchy."""
        return f"/boxd-{self.instance}"

    @property
    def runc_root(self) -> Path:
        """runc's own state: it must not outlive a reboot, so it stands in /run."""
        return Path(f"/run/boxd-{self.instance}/runc")

    @property
    def boxes_dir(self) -> Path:
        """The parent of all box directories."""
        return self.state_dir / "boxes"

    @property
    def origins_dir(self) -> Path:
        """Where it is recorded of which boxes snapshots were taken."""
        return self.state_dir / "origins"

    @property
    def snapshots_dir(self) -> Path:
        """The parent of snapshots on disks without limits."""
        return self.state_dir / "snapshots"

    def link(self, slot: int) -> str:
        """The host end of a box's link; at most 15 characters, which is the kernel's limit."""
        return f"{self.link_prefix}{slot:04x}"

    def netns(self, box_id: str) -> str:
        """The network namespace, as `ip netns` shows it."""
        return f"boxd-{self.instance}-{box_id[:12]}"

    def netns_path(self, box_id: str) -> Path:
        """Where the network namespace is mounted."""
        return Path("/run/netns") / self.netns(box_id)

    def cgroup(self, box_id: str) -> str:
        """The box's cgroup, in every hierarchy."""
        return f"{self.cgroup_parent}/{box_id}"

    def paths(self, box_id: str) -> BoxPaths:
        """The box's files."""
        return BoxPaths(self.boxes_dir / box_id)


@dataclass(frozen=True, slots=True)
class BoxPaths:
    """Files of one box below its directory."""

    directory: Path

    @property
    def record(self) -> Path:
        """What the box is made from (JSON); a directory without it is not a box."""
        return self.directory / "box.json"

    @property
    def bundle(self) -> Path:
        """The OCI bundle: holds config.json."""
        return self.directory / "bundle"

    @property
    def empty(self) -> Path:
        """An empty directory: what the box sees where it must see nothing."""
        return self.bundle / "empty"

    @property
    def layer(self) -> Path:
        """The writable layer."""
        return self.directory / "layer"

    @property
    def root(self) -> Path:
        """Where the root filesystem is mounted."""
        return self.directory / "root"

    @property
    def pid(self) -> Path:
        """The init process's pid on the host, written by the runtime before it starts."""
        return self.directory / "pid"

    @property
    def log(self) -> Path:
        """The runtime's messages of the last start, dump or restore."""
        return self.directory / "runc.log"

    @property
    def criu_config(self) -> Path:
        """What CRIU is told beside its arguments; written before each dump and restore."""
        return self.directory / "criu.conf"

    @property
    def criu_work(self) -> Path:
        """Logs of CRIU, and images as they are changed for a restore."""
        return self.directory / "criu"

    @property
    def busy(self) -> Path:
        """Locked by whoever dumps or restores the box, also when the service has died since."""
        return self.directory / "busy"
