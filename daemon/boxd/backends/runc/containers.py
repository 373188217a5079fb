"""The steps of one box as a runc container: prepare, start, end, release.

Each step is idempotent. This module takes no lock; the backend serialises the calls for each box.
"""

from __future__ import annotations

import asyncio
import json
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.checkpoint import criu_config
from boxd.backends.disks import disk
from boxd.backends.host import cgroups, mounts, processes, trees
from boxd.backends.host.files import device
from boxd.backends.host.run import last_words, run_silent
from boxd.backends.oci import bundle, drive_mount, mount_table
from boxd.backends.oci.lxcfs import Lxcfs
from boxd.backends.records import write
from boxd.cancellation import together
from boxd.errors import BoxdError, Conflict, Unavailable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from boxd.backends.disks.kinds import Disks
    from boxd.backends.host.names import BoxPaths, HostNames
    from boxd.backends.network.host_network import Network
    from boxd.backends.records import Record

START_TIMEOUT = 60.0


class Containers:
    """Prepares, starts and ends the containers of one installation.

    `disks` and `network` are those of the installation. `layout` is known after `detect`. With
    `fuse`, boxes mount their drives themselves.
    """

    def __init__(
        self,
        names: HostNames,
        network: Network,
        disks: Disks,
        init: tuple[str, ...],
        *,
        fuse: bool = False,
    ) -> None:
        self.names = names
        self.network = network
        self.disks = disks
        self.fuse = fuse
        self.lxcfs = Lxcfs(names)
        self._init = init
        self._layout: cgroups.Layout | None = None

    def detect(self) -> None:
        """Detect the host's cgroups. Raises Unavailable with a remedy."""
        self._layout = cgroups.detect()

    def forget_layout(self) -> None:
        """Forget the result of `detect`."""
        self._layout = None

    @property
    def ready(self) -> bool:
        """Whether the host's cgroups are known."""
        return self._layout is not None

    @property
    def layout(self) -> cgroups.Layout:
        """The host's cgroups. Raises Unavailable before `detect`."""
        if self._layout is None:
            raise Unavailable("the backend is not set up")
        return self._layout

    def paths(self, box_id: str) -> BoxPaths:
        """Return the paths of the box's files."""
        return self.names.paths(box_id)

    def disk(self, record: Record) -> disk.Disk:
        """Return the box's disk. Raises Unavailable if it is missing."""
        return self.disks.named(record.disk)

    def runs(self, box_id: str) -> bool:
        """Return whether the box's init is alive."""
        return processes.runs(*self._init_of(box_id))

    def is_frozen(self, box_id: str) -> bool:
        """Return whether the box is alive and frozen."""
        return self.runs(box_id) and cgroups.is_frozen(self.layout, self.names.cgroup(box_id))

    def init(self, box_id: str) -> AbstractContextManager[tuple[int, int]]:
        """Return pid and pidfd of the box's init. Raises Conflict if it is not running."""
        return processes.init_process(*self._init_of(box_id))

    async def prepare(self, record: Record, *, lxcfs: bool = True) -> None:
        """Mount the root, set up the network and start lxcfs, each if it is missing.

        `lxcfs`: the box has, or gets, the files that show it its own size. After an error, call
        `release` to undo the steps so far.
        """
        rootfs = record.plan.rootfs
        if rootfs is None or not rootfs.is_dir():
            version = "" if rootfs is None else f" (version {rootfs.name})"
            raise Unavailable(
                f"image {record.plan.image}{version} of the box is missing on this host; "
                "ask the operator for it, or recreate the box with "
                f"{record.plan.hostname}+"
            )
        paths = self.paths(record.plan.box_id)
        if lxcfs:
            self.lxcfs.begin(record.plan.box_id)
        await self.disk(record).mount(paths, rootfs, record.plan.disk_mb)
        await self.connect(record)

    async def connect(self, record: Record) -> None:
        """Set up network and fence, if they are missing."""
        await self.network.ensure(record.plan.box_id, record.slot, egress=record.plan.egress)

    def furnish(self, record: Record) -> None:
        """Write files that the box's system expects. The box may change them later."""
        top = self.disk(record).upper(self.paths(record.plan.box_id))
        (top / bundle.DRIVE_DIR.lstrip("/")).mkdir(mode=0o755, exist_ok=True)
        for name, content in bundle.etc_files(record.plan.hostname).items():
            disk.write_beneath(top, name, content)

    def rename(self, record: Record) -> None:
        """Write the box's name into a layer copied from another box.

        The layer must not be mounted.
        """
        top = self.disk(record).upper(self.paths(record.plan.box_id))
        files = bundle.etc_files(record.plan.hostname)
        for name in ("hostname", "hosts"):
            disk.write_beneath(top, name, files[name])

    def configure(self, record: Record, *, lxcfs: bool) -> None:
        """Write the bundle. With `lxcfs`, kernel files show the box its own size."""
        box_id = record.plan.box_id
        paths = self.paths(box_id)
        netns, cgroup = self.names.netns_path(box_id), self.names.cgroup(box_id)
        config = bundle.config(
            record.plan,
            bundle.Places(
                root=paths.root,
                netns=netns,
                cgroup=cgroup,
                masks=self.names.masks,
                sizes=self.lxcfs.files(box_id) if lxcfs else {},
            ),
            bundle.HostFacts(
                nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
                caps_swap=cgroups.caps_swap(self.layout, self.names.cgroup_parent),
                hidden=bundle.hidden(),
                missing=bundle.missing(),
            ),
            self._init,
            fuse=self.fuse,
        )
        config["annotations"] = {criu_config.ANNOTATION: str(paths.criu_config)}
        write(paths.bundle / "config.json", json.dumps(config))

    async def run(self, record: Record) -> None:
        """Start the init. Raises BoxdError with runc's error text."""
        paths = self.paths(record.plan.box_id)
        self.configure(record, lxcfs=await self.lxcfs.ready(record.plan.box_id))
        paths.log.unlink(missing_ok=True)
        status = await run_silent(
            "runc",
            "--root",
            str(self.names.runc_root),
            "--log",
            str(paths.log),
            "--log-format",
            "json",
            "run",
            "--detach",
            "--bundle",
            str(paths.bundle),
            "--pid-file",
            str(paths.pid),
            record.plan.box_id,
            timeout=START_TIMEOUT,
        )
        if status != 0:
            raise BoxdError(f"the box does not start: {last_words(paths.log)}")
        await processes.wait_for_exec(paths.pid)

    def configuration(self, box_id: str) -> dict[str, Any]:
        """Return the configuration in the box's bundle."""
        content: dict[str, Any] = json.loads(
            (self.paths(box_id).bundle / "config.json").read_text()
        )
        return content

    def require_mounts(self, box_id: str) -> None:
        """Raise BoxdError if the mounts of a running box differ from its bundle."""
        with self.init(box_id) as (pid, _):
            self.require_mounts_of(box_id, pid)

    def require_mounts_of(self, box_id: str, pid: int) -> None:
        """Raise BoxdError if the mounts of a process differ from the box's bundle."""
        config = self.configuration(box_id)
        table = mount_table.parse(mounts.table(Path(f"/proc/{pid}/mountinfo")))
        if differences := mount_table.differences(config, table):
            raise BoxdError(f"its mounts are not safe: {mount_table.summary(differences)}")

    def has_lxcfs(self, box_id: str) -> bool:
        """Return whether the bundle of a box has the files that show it its own size."""
        files = self.lxcfs.files(box_id)
        return any(
            mount["source"] == str(files.get(mount["destination"]))
            for mount in self.configuration(box_id)["mounts"]
        )

    async def renew_lxcfs(self, record: Record) -> None:
        """Mount new lxcfs files in a running box. Raises BoxdError."""
        box_id = record.plan.box_id
        self.lxcfs.begin(box_id)
        if not await self.lxcfs.ready(box_id):
            return
        try:
            with self.init(box_id) as (_, pidfd):
                await drive_mount.replace_files(pidfd, self.lxcfs.files(box_id))
        except BaseException:
            await self.lxcfs.discard(box_id)
            raise

    async def adopt_lxcfs(self, box_id: str) -> None:
        """Watch the lxcfs of a box that an earlier service started, if its bundle has one."""
        if self.has_lxcfs(box_id):
            with suppress(Conflict), self.init(box_id) as (pid, _):
                await self.lxcfs.adopt(box_id, Path(f"/proc/{pid}/mountinfo"))

    async def end(self, box_id: str, grace: float) -> None:
        """End all processes. Processes get `grace` seconds to exit, unless frozen.

        Frozen processes are killed and execute no further instruction.
        """
        if not self.is_frozen(box_id):
            await processes.end(*self._init_of(box_id), grace)
            return
        self._kill(box_id)
        await processes.wait_for_end(*self._init_of(box_id))

    def holds(self, record: Record) -> bool:
        """Return whether the box still has a network, an lxcfs, or a mounted root."""
        box_id = record.plan.box_id
        link = device(self.names.link(record.slot))
        root = self.paths(box_id).root
        connected = link.exists() or self.names.netns_path(box_id).exists()
        return connected or self.lxcfs.is_there(box_id) or mounts.is_mounted(root)

    async def release(self, record: Record) -> None:
        """Remove what only a running box needs: container, cgroup, network, lxcfs and root."""
        box_id = record.plan.box_id
        # An unmount first writes the data to the disk, which may take a while.
        root = self.paths(box_id).root
        await together(
            self.forget(box_id),
            self.network.remove(box_id, record.slot),
            self.lxcfs.end(box_id),
            asyncio.to_thread(mounts.unmount_everywhere, root),
        )

    async def require_unused(self, record: Record) -> None:
        """Raise RootHeld while a process of the host uses the root of a released box."""
        rootfs = record.plan.rootfs
        if rootfs is not None and rootfs.is_dir():
            await self.disk(record).require_unused(self.paths(record.plan.box_id), rootfs)

    async def abandon(self, box_id: str) -> None:
        """End and remove a box that has no record."""
        await self.end(box_id, 0)
        await self.forget(box_id)
        await self.network.abandon(box_id)
        await self.lxcfs.end(box_id)
        await asyncio.to_thread(mounts.unmount_everywhere, self.paths(box_id).root)

    async def forget(self, box_id: str) -> None:
        """Remove runc's state and the cgroup, including the remains of an interrupted start."""
        self._kill(box_id)
        await cgroups.remove(self.layout, self.names.cgroup(box_id))
        # Equivalent to `runc delete --force`, but the start of a program would cost more.
        await asyncio.to_thread(trees.remove_tree, self.names.runc_root / box_id)
        self.paths(box_id).pid.unlink(missing_ok=True)

    def _kill(self, box_id: str) -> None:
        """Send SIGKILL before the thaw, so frozen processes end before they can run."""
        cgroup = self.names.cgroup(box_id)
        processes.kill(cgroups.pids_of(self.layout, cgroup))
        cgroups.thaw(self.layout, cgroup)

    def _init_of(self, box_id: str) -> tuple[Path, str]:
        return self.paths(box_id).pid, self.names.cgroup(box_id)
