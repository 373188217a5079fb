"""The steps of one box as a container of runc: made ready, started, ended, taken apart.

Each step is idempotent. No lock is taken here: the backend serialises the calls for one box.
"""

from __future__ import annotations

import asyncio
import json
import resource
from typing import TYPE_CHECKING

from boxd.backends import bundle, cgroups, criu_config, disk, mounts, processes, trees
from boxd.backends.boxlocks import together
from boxd.backends.hostfiles import device
from boxd.backends.records import write
from boxd.backends.run import last_words, run_silent
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from boxd.backends.disks import Disks
    from boxd.backends.hostnames import BoxPaths, HostNames
    from boxd.backends.network import Network
    from boxd.backends.records import Record

START_TIMEOUT = 60.0


class Containers:
    """`disks` and `network` are those of the installation; `layout` is known after `detect`.
    `fuse`: boxes mount their drives themselves."""

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
        self._init = init
        self._layout: cgroups.Layout | None = None

    def detect(self) -> None:
        """Looks at the host's cgroups. Raises Unavailable with a remedy."""
        self._layout = cgroups.detect()

    def forget_layout(self) -> None:
        """The opposite of `detect`."""
        self._layout = None

    @property
    def ready(self) -> bool:
        """Whether `detect` was called."""
        return self._layout is not None

    @property
    def layout(self) -> cgroups.Layout:
        """The host's cgroups."""
        if self._layout is None:
            raise Unavailable("the backend is not set up")
        return self._layout

    def paths(self, box_id: str) -> BoxPaths:
        """Where the box's files are."""
        return self.names.paths(box_id)

    def disk(self, record: Record) -> disk.Disk:
        """The disk that the box has. Unavailable when it is not there."""
        return self.disks.named(record.disk)

    def runs(self, box_id: str) -> bool:
        """Whether the box's init lives."""
        return processes.runs(*self._init_of(box_id))

    def is_frozen(self, box_id: str) -> bool:
        """Whether it lives and stands still."""
        return self.runs(box_id) and cgroups.is_frozen(self.layout, self.names.cgroup(box_id))

    def init(self, box_id: str) -> AbstractContextManager[tuple[int, int]]:
        """Pid and pidfd of its init; Conflict when it does not run."""
        return processes.init_process(*self._init_of(box_id))

    async def prepare(self, record: Record) -> None:
        """Mounts the root and makes the network, as far as they are missing."""
        rootfs = record.plan.rootfs
        if rootfs is None or not rootfs.is_dir():
            version = "" if rootfs is None else f" (version {rootfs.name})"
            raise Unavailable(
                f"image {record.plan.image}{version}, on which the box stands, is gone from this "
                f"host; ask the operator for it, or make the box anew: {record.plan.hostname}+"
            )
        paths = self.paths(record.plan.box_id)
        await self.disk(record).mount(paths, rootfs, record.plan.disk_mb)
        await self.connect(record)

    async def connect(self, record: Record) -> None:
        """Makes network and fence, as far as they are missing."""
        await self.network.ensure(record.plan.box_id, record.slot, egress=record.plan.egress)

    def furnish(self, record: Record) -> None:
        """Files that the box's system expects to be right. The box may change them later."""
        top = self.disk(record).upper(self.paths(record.plan.box_id))
        (top / bundle.DRIVE_DIR.lstrip("/")).mkdir(mode=0o755, exist_ok=True)
        for name, content in bundle.etc_files(record.plan.hostname).items():
            disk.write_beneath(top, name, content)

    def call_by_name(self, record: Record) -> None:
        """Writes the box's name into a layer that was another box's. It is not mounted."""
        top = self.disk(record).upper(self.paths(record.plan.box_id))
        files = bundle.etc_files(record.plan.hostname)
        for name in ("hostname", "hosts"):
            disk.write_beneath(top, name, files[name])

    def configure(self, record: Record) -> None:
        """Writes the bundle."""
        box_id = record.plan.box_id
        paths = self.paths(box_id)
        netns, cgroup = self.names.netns_path(box_id), self.names.cgroup(box_id)
        paths.empty.mkdir(mode=0o555, exist_ok=True)
        config = bundle.config(
            record.plan,
            bundle.Places(paths.root, netns, cgroup, paths.empty),
            bundle.HostFacts(
                nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
                caps_swap=cgroups.caps_swap(self.layout, self.names.cgroup_parent),
                hidden=bundle.hidden(),
            ),
            self._init,
            fuse=self.fuse,
        )
        config["annotations"] = {criu_config.ANNOTATION: str(paths.criu_config)}
        write(paths.bundle / "config.json", json.dumps(config))

    async def run(self, record: Record) -> None:
        """Starts the init. Raises BoxdError with runc's words."""
        paths = self.paths(record.plan.box_id)
        self.configure(record)
        paths.log.unlink(missing_ok=True)
        status = await run_silent(
            *self._runc("--log", str(paths.log), "--log-format", "json"),
            *("run", "--detach", "--bundle", str(paths.bundle), "--pid-file", str(paths.pid)),
            record.plan.box_id,
            timeout=START_TIMEOUT,
        )
        if status != 0:
            raise BoxdError(f"the box does not start: {last_words(paths.log)}")
        await processes.wait_for_exec(paths.pid)

    async def end(self, box_id: str, grace: float) -> None:
        """Ends all processes, with time to do it themselves unless they are frozen.

        No instruction of frozen ones runs any more.
        """
        if not self.is_frozen(box_id):
            await processes.end(*self._init_of(box_id), grace)
            return
        self._kill(box_id)
        await processes.wait_for_end(*self._init_of(box_id))

    def holds(self, record: Record) -> bool:
        """Whether `release` finds anything of the host's network, or the root."""
        box_id = record.plan.box_id
        link = device(self.names.link(record.slot))
        root = self.paths(box_id).root
        return link.exists() or self.names.netns_path(box_id).exists() or mounts.is_mounted(root)

    async def release(self, record: Record) -> None:
        """Removes what a box that does not run does not need: container, cgroup, network, root."""
        box_id = record.plan.box_id
        # What is unmounted is written to the disk first: that may take a while.
        root = self.paths(box_id).root
        await together(
            self.forget(box_id),
            self.network.remove(box_id, record.slot),
            asyncio.to_thread(mounts.unmount, root, lazily=True),
        )

    async def abandon(self, box_id: str) -> None:
        """Ends and removes what there is of a box whose record is not."""
        await self.end(box_id, 0)
        await self.forget(box_id)
        await self.network.abandon(box_id)
        await asyncio.to_thread(mounts.unmount, self.paths(box_id).root, lazily=True)

    async def forget(self, box_id: str) -> None:
        """Removes runc's state and the cgroup, and with them what an interrupted start left."""
        self._kill(box_id)
        await cgroups.remove(self.layout, self.names.cgroup(box_id))
        # `runc delete --force` does just this; but a program's start costs more than all of it.
        await asyncio.to_thread(trees.remove_tree, self.names.runc_root / box_id)
        self.paths(box_id).pid.unlink(missing_ok=True)

    def _kill(self, box_id: str) -> None:
        """SIGKILL first: what is frozen ends before it goes on."""
        cgroup = self.names.cgroup(box_id)
        processes.kill(cgroups.pids_of(self.layout, cgroup))
        cgroups.thaw(self.layout, cgroup)

    def _init_of(self, box_id: str) -> tuple[Path, str]:
        return self.paths(box_id).pid, self.names.cgroup(box_id)

    def _runc(self, *options: str) -> tuple[str, ...]:
        return ("runc", "--root", str(self.names.runc_root), *options)
