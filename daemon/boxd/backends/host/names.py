"""Names of a box's objects on the host, and the paths of its files. Pure functions.

Every name contains the installation's 6 hexadecimal digits, so that two installations on one host
never confuse their objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LINK_FAMILY = "bx"
"""Prefix of all box links of all installations."""


@dataclass(frozen=True, slots=True)
class HostNames:
    """Names of the host objects of one installation."""

    instance: str
    state_dir: Path

    @property
    def table(self) -> str:
        """The nftables table (family inet)."""
        return f"boxd_{self.instance}"

    @property
    def link_prefix(self) -> str:
        """Prefix of the host ends of this installation's box links."""
        return f"{LINK_FAMILY}{self.instance}-"

    @property
    def cgroup_parent(self) -> str:
        """The cgroup above the boxes' cgroups, in every hierarchy."""
        return f"/boxd-{self.instance}"

    @property
    def runc_root(self) -> Path:
        """runc's own state. It must not outlive a reboot, so it is in /run."""
        return Path(f"/run/boxd-{self.instance}/runc")

    @property
    def masks(self) -> Path:
        """The mounts that mask kernel paths in boxes."""
        return self.runc_root.parent / "masks"

    @property
    def lxcfs(self) -> Path:
        """The parent of the mounts that show boxes their own size."""
        return self.runc_root.parent / "lxcfs"

    @property
    def users(self) -> Path:
        """The pinned user namespaces of the ranges of ids."""
        return self.runc_root.parent / "users"

    @property
    def mounts(self) -> Path:
        """The parent of the boxes' mounts on the host. Boxes reach their own mounts there."""
        return self.runc_root.parent / "mounts"

    @property
    def boxes_dir(self) -> Path:
        """The parent of all box directories."""
        return self.state_dir / "boxes"

    @property
    def origins_dir(self) -> Path:
        """The directory that records the box of each snapshot."""
        return self.state_dir / "origins"

    @property
    def snapshots_dir(self) -> Path:
        """The parent of snapshots on disks without limits."""
        return self.state_dir / "snapshots"

    def link(self, slot: int) -> str:
        """Return the host end of a box's link; at most 15 characters, the kernel's limit."""
        return f"{self.link_prefix}{slot:04x}"

    def netns(self, box_id: str) -> str:
        """Return the network namespace's name, as in `ip netns`."""
        return f"boxd-{self.instance}-{box_id[:12]}"

    def netns_path(self, box_id: str) -> Path:
        """Return the path where the network namespace is mounted."""
        return Path("/run/netns") / self.netns(box_id)

    def cgroup(self, box_id: str) -> str:
        """Return the box's cgroup, in every hierarchy."""
        return f"{self.cgroup_parent}/{box_id}"

    def lxcfs_cgroup(self, box_id: str) -> str:
        """Return the cgroup of the box's lxcfs, in every hierarchy that limits it."""
        return f"{self.cgroup_parent}/lxcfs-{box_id}"

    def paths(self, box_id: str) -> BoxPaths:
        """Return the paths of the box's files."""
        return BoxPaths(self.boxes_dir / box_id, self.mounts / box_id)


@dataclass(frozen=True, slots=True)
class BoxPaths:
    """Files of one box below its directory, and its mounts on the host below `mounts`.

    The mounts are reachable for the box's root, which is an unprivileged user of the host.
    """

    directory: Path
    mounts: Path

    @property
    def record(self) -> Path:
        """The box's record (JSON). A directory without it is not a box."""
        return self.directory / "box.json"

    @property
    def starting(self) -> Path:
        """The pid of a first process that has not executed the box's own program yet.

        `pid` names it afterwards, so the service never asks a box whether it has started.
        """
        return self.directory / "starting.pid"

    @property
    def bundle(self) -> Path:
        """The OCI bundle, which contains config.json."""
        return self.directory / "bundle"

    @property
    def layer(self) -> Path:
        """The writable layer."""
        return self.directory / "layer"

    @property
    def root(self) -> Path:
        """The mount point of the root file system."""
        return self.mounts / "root"

    @property
    def old_root(self) -> Path:
        """The mount point of a box without a user namespace, which an older release started."""
        return self.directory / "root"

    @property
    def run_dir(self) -> Path:
        """The directory with the tunnel's socket, with the ids of the box."""
        return self.mounts / "run"

    @property
    def runtime(self) -> Path:
        """The agent's files, with the ids of the box."""
        return self.mounts / "runtime"

    @property
    def drive(self) -> Path:
        """The drive with the ids of the box, during a restore."""
        return self.mounts / "drive"

    @property
    def pid(self) -> Path:
        """File with the pid of init on the host. The runtime writes it before init starts."""
        return self.directory / "pid"

    @property
    def log(self) -> Path:
        """The runtime's log of the last start, dump or restore."""
        return self.directory / "runc.log"

    @property
    def criu_config(self) -> Path:
        """CRIU's configuration file. It is written before each dump and restore."""
        return self.directory / "criu.conf"

    @property
    def criu_work(self) -> Path:
        """CRIU's logs, and images that are changed for a restore."""
        return self.directory / "criu"

    @property
    def relay(self) -> Path:
        """Directory of the program that runc starts in place of CRIU, and of the gate's socket."""
        return self.directory / "relay"

    @property
    def busy(self) -> Path:
        """Lock file of dumps and restores, which they hold even after the service has died."""
        return self.directory / "busy"
