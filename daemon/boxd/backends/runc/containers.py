"""The steps of one box as a runc container: prepare, start, end, release.

Each step is idempotent. This module takes no lock; the backend serialises the calls for each box.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.checkpoint import criu_config
from boxd.backends.checkpoint.netns import set_up
from boxd.backends.disks import disk
from boxd.backends.disks.disk import in_thread
from boxd.backends.host import cgroups, hostname, id_maps, mounts, processes, trees
from boxd.backends.host.files import device
from boxd.backends.host.id_ranges import IdRanges
from boxd.backends.host.run import last_words, run_silent
from boxd.backends.oci import bundle, drive_mount, inner_containers, mount_points, mount_table
from boxd.backends.oci.lxcfs import Lxcfs
from boxd.backends.records import write
from boxd.cancellation import together
from boxd.errors import BoxdError, Conflict, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from boxd.backends.disks.kinds import Disks
    from boxd.backends.host.id_maps import IdMap
    from boxd.backends.host.names import BoxPaths, HostNames
    from boxd.backends.network.host_network import Network
    from boxd.backends.records import Record

START_TIMEOUT = 60.0
TCP_SHARE = 4
"""With cgroup v1, data in sockets of TCP may take 1/TCP_SHARE of a box's memory, beside it."""
NO_USERS = (
    "boxes need user namespaces and mounts that map ids, also of FUSE: use Linux 6.12 or newer "
    "(for Debian 12: linux-image-amd64 of bookworm-backports), or start with --privileged-boxes "
    "if everybody with a box may be root of this host"
)


class Containers:
    """Prepares, starts and ends the containers of one installation.

    `disks` and `network` are those of the installation. `layout` is known after `detect`. With
    `fuse`, boxes mount their drives themselves. With `privileged`, new boxes have no user
    namespaces.
    """

    def __init__(
        self,
        names: HostNames,
        network: Network,
        disks: Disks,
        init: tuple[str, ...],
        *,
        fuse: bool = False,
        privileged: bool = False,
    ) -> None:
        self.names = names
        self.privileged = privileged
        self.network = network
        self.disks = disks
        self.fuse = fuse
        self.lxcfs = Lxcfs(names)
        self.ranges = IdRanges(names)
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

    async def id_map(self, record: Record) -> IdMap | None:
        """Return the id map with which a box starts; None without user namespaces."""
        return None if self.privileged else await self.own_id_map(record)

    async def own_id_map(self, record: Record) -> IdMap:
        """Return the id map of a box with a user namespace. Raises Unavailable."""
        return await asyncio.to_thread(self._pinned, record.slot)

    def require_id_maps(self, directories: Iterable[Path]) -> None:
        """Raise Unavailable if boxes cannot have user namespaces here, and must have them."""
        if self.privileged:
            return
        try:
            id_maps.require(self.ranges.of(0), self.names.users.parent / "check", directories)
        except Unavailable as error:
            raise Unavailable(f"{error}; {NO_USERS}") from error

    def _pinned(self, slot: int) -> IdMap:
        ids = self.ranges.of(slot)
        return id_maps.pin(ids, self.names.users / str(ids.first))

    def forget_id_maps(self) -> None:
        """Give all ranges of ids back. No box may be running."""
        for place in self.names.users.glob("*"):
            id_maps.unpin(place)
        self.ranges.release()
        for directory in (self.names.users, self.names.mounts):
            with suppress(FileNotFoundError):
                directory.rmdir()

    async def prepare(self, record: Record, by: IdMap | None, *, lxcfs: bool = True) -> None:
        """Mount the root and start lxcfs, each if it is missing.

        `by` is the box's id map. A box without one also gets its network; the others get it when
        their network namespace exists (`connect`). `lxcfs`: the box has, or gets, the files that
        show it its own size. After an error, call `release` to undo the steps so far.
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
        if by is not None:
            _open_way(paths, by)
        await self.disk(record).mount(paths, rootfs, record.plan.disk_mb, by)
        if by is None:
            await self.connect(record)
            return
        self.network.require_valid(record.plan.egress)
        plan = record.plan
        for source, place in ((plan.run_dir, paths.run_dir), (plan.runtime, paths.runtime)):
            # Read-only: whoever removes the directory of these mounts must not reach their content.
            await asyncio.to_thread(_show, source, place, by, read_only=True)

    async def connect(self, record: Record, pid: int | None = None) -> None:
        """Set up network and fence, if they are missing.

        With `pid`, the box's network namespace is that of the process.
        """
        box_id = record.plan.box_id
        await self.network.ensure(box_id, record.slot, egress=record.plan.egress, pid=pid)

    async def reconnect(self, record: Record) -> None:
        """Set up network and fence of a running box, if they are missing."""
        with self.init(record.plan.box_id) as (pid, _):
            await self.connect(record, None if id_maps.of_process(pid) is None else pid)

    async def make_mount_points(self, box_id: str, by: IdMap) -> None:
        """Create the places in the mounted root at which a restore mounts something."""

        def work() -> None:
            with id_maps.acting_as(by):
                mount_points.create(self.paths(box_id).root, self.configuration(box_id))

        await in_thread(work)

    async def show_drive(self, record: Record, drive: Path, by: IdMap) -> Path:
        """Mount a drive on the host with the ids of a box, until `hide_drive`; return the place."""
        place = self.paths(record.plan.box_id).drive
        await asyncio.to_thread(_show, drive, place, by, read_only=False)
        return place

    async def hide_drive(self, record: Record) -> None:
        """Undo `show_drive`. Mounts in boxes stay."""
        await asyncio.to_thread(id_maps.unbind, self.paths(record.plan.box_id).drive)

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

    async def rename_running(self, record: Record) -> None:
        """Write the box's name into the mounted root and the UTS namespace of a running box.

        Raises Conflict if the box is not frozen, because its processes could change files.
        """
        box_id = record.plan.box_id
        if not self.is_frozen(box_id):
            raise Conflict("the box is not frozen")
        root = self.root(box_id)
        with self.init(box_id) as (pid, _):
            first = id_maps.of_process(pid)
            await in_thread(hostname.set_of_process, pid, record.plan.hostname)
        if root is None:
            raise Conflict("the root of the box is not mounted")
        by = None if first is None else await self.own_id_map(record)

        def write_names() -> None:
            files = bundle.etc_files(record.plan.hostname)
            with id_maps.acting_as(by):
                for name in ("hostname", "hosts"):
                    disk.write_beneath(root, name, files[name])

        await in_thread(write_names)

    def configure(self, record: Record, by: IdMap | None, *, lxcfs: bool) -> None:
        """Write the bundle. With `lxcfs`, kernel files show the box its own size."""
        box_id = record.plan.box_id
        paths = self.paths(box_id)
        netns, cgroup = self.names.netns_path(box_id), self.names.cgroup(box_id)
        config = bundle.config(
            record.plan,
            bundle.Places(
                root=paths.old_root if by is None else paths.root,
                netns=netns,
                cgroup=cgroup,
                masks=self.names.masks,
                run_dir=record.plan.run_dir if by is None else paths.run_dir,
                runtime=record.plan.runtime if by is None else paths.runtime,
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
            ids=None if by is None else by.ids,
        )
        config["annotations"] = {criu_config.ANNOTATION: str(paths.criu_config)}
        write(paths.bundle / "config.json", json.dumps(config))

    async def run(self, record: Record, by: IdMap | None) -> None:
        """Start the init. Raises BoxdError with runc's error text."""
        box_id = record.plan.box_id
        paths = self.paths(box_id)
        self.configure(record, by, lxcfs=await self.lxcfs.ready(box_id))
        paths.log.unlink(missing_ok=True)
        places = ("--bundle", str(paths.bundle), "--pid-file", str(paths.starting))
        if by is None:
            await self._runc(paths, "run", "--detach", *places, box_id)
        else:
            await self._runc(paths, "create", *places, box_id)
            pid = processes.read_pid(paths.starting)
            if pid is None:
                raise BoxdError("the box does not start: runc wrote no pid")
            await self.connect(record, pid)
            await set_up(self.names.netns(box_id), by.ids)
            if record.plan.containers:
                inner_containers.hand_over(self.layout, self.names.cgroup(box_id), by.ids)
                await inner_containers.limit_namespaces(pid)
            await self._runc(paths, "start", box_id)
        await processes.wait_for_exec(paths.starting)
        self.protect_host(record)
        paths.starting.replace(paths.pid)

    async def _runc(self, paths: BoxPaths, *arguments: str) -> None:
        logged = ("--log", str(paths.log), "--log-format", "json")
        root = ("--root", str(self.names.runc_root))
        command = (*mounts.apart(), "runc", *root, *logged, *arguments)
        if await run_silent(*command, timeout=START_TIMEOUT) != 0:
            raise BoxdError(f"the box does not start: {last_words(paths.log)}")

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
            with self.init(box_id) as (pid, pidfd):
                await drive_mount.replace_files(pid, pidfd, self.lxcfs.files(box_id))
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
        paths = self.paths(box_id)
        connected = link.exists() or self.names.netns_path(box_id).exists()
        mounted = mounts.is_mounted(paths.root) or mounts.is_mounted(paths.old_root)
        return connected or self.lxcfs.is_there(box_id) or mounted

    async def release(self, record: Record) -> None:
        """Remove what only a running box needs: container, cgroup, network, lxcfs and root."""
        box_id = record.plan.box_id
        # An unmount first writes the data to the disk, which may take a while.
        await together(
            self.forget(box_id),
            self.network.remove(box_id, record.slot),
            self.lxcfs.end(box_id),
            asyncio.to_thread(self._unmount, box_id),
        )

    def _unmount(self, box_id: str) -> None:
        paths = self.paths(box_id)
        for root in (paths.root, paths.old_root):
            mounts.unmount_everywhere(root)
        id_maps.unbind_all(paths.mounts)

    def root(self, box_id: str) -> Path | None:
        """Return the mounted root of a box, or None."""
        paths = self.paths(box_id)
        return next(filter(mounts.is_mounted, (paths.root, paths.old_root)), None)

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
        await asyncio.to_thread(self._unmount, box_id)

    async def forget(self, box_id: str) -> None:
        """Remove runc's state and the cgroup, including the remains of an interrupted start."""
        self._kill(box_id)
        await cgroups.remove(self.layout, self.names.cgroup(box_id))
        # Equivalent to `runc delete --force`, but the start of a program would cost more.
        await asyncio.to_thread(trees.remove_tree, self.names.runc_root / box_id)
        for file in (self.paths(box_id).pid, self.paths(box_id).starting):
            file.unlink(missing_ok=True)

    def protect_host(self, record: Record) -> None:
        """Set what runc and CRIU leave open, so that a box cannot use up the memory of the host."""
        box_id = record.plan.box_id
        limit = record.plan.mem_mb * bundle.MIB // TCP_SHARE
        cgroups.limit_tcp(self.layout, self.names.cgroup(box_id), limit)
        for pid in self.pids(box_id):
            # The kernel takes what root of the host writes as the minimum, also for new processes.
            with suppress(FileNotFoundError, ProcessLookupError):
                file = Path(f"/proc/{pid}/oom_score_adj")
                file.write_text(str(max(int(file.read_text()), bundle.OOM_SCORE_ADJ)))

    def _kill(self, box_id: str) -> None:
        """Send SIGKILL before the thaw, so frozen processes end before they can run."""
        processes.kill(self.pids(box_id))
        cgroups.thaw(self.layout, self.names.cgroup(box_id))

    def pids(self, box_id: str) -> list[int]:
        """Return the processes of a box."""
        return cgroups.pids_of(self.layout, self.names.cgroup(box_id))

    def _init_of(self, box_id: str) -> tuple[Path, str]:
        return self.paths(box_id).pid, self.names.cgroup(box_id)


def _open_way(paths: BoxPaths, by: IdMap) -> None:
    """Create the directory of a box's mounts, which only the box's root and the service enter."""
    for directory in (paths.mounts.parent.parent, paths.mounts.parent):
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        directory.chmod(0o711)
    paths.mounts.mkdir(mode=0o700, exist_ok=True)
    os.chown(paths.mounts, by.ids.first, by.ids.first)


def _show(source: Path, place: Path, by: IdMap, *, read_only: bool) -> None:
    try:
        id_maps.bind(source, place, by, read_only=read_only)
    except OSError as error:
        raise Unavailable(
            f"{source} cannot be shown with the ids of a box: {error.strerror}"
        ) from error
