"""The default backend: one OCI container per box, run by `runc`, detached from the daemon.

A box's truth is on the host, not in this object: its directory with `box.json`, its processes, its
mounts. A new object on the same state directory therefore adopts what an earlier one left.

*Measured* p50 of 40 boxes of `debian` on 2 cores with a load of 3 to 4: create 33 ms, start 97 ms
(of it `runc run` 84), attaching a drive 56 ms, destroy 84 ms. Of 10 boxes with a busybox root, when
less else ran: create 18 ms, start 47 ms, destroy 52 ms, `list` 2 ms.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.backends import (
    bundle,
    cgroups,
    criu,
    criu_cache,
    drivemount,
    hostshares,
    inside,
    links,
    mounts,
    subnets,
    trees,
)
from boxd.backends.boxlocks import BoxLocks, to_the_end
from boxd.backends.containers import Containers
from boxd.backends.disks import Disks
from boxd.backends.hostfiles import memory_for_boxes
from boxd.backends.hostnames import HostNames
from boxd.backends.interface import BackendBox, BoxStats, Capabilities
from boxd.backends.network import RESOLV_CONF, Network
from boxd.backends.origins import Origins
from boxd.backends.records import Record, Records
from boxd.backends.run import run
from boxd.backends.runc_memory import RuncMemory
from boxd.backends.runc_snapshots import RuncSnapshots
from boxd.errors import Unavailable

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from boxd.backends.interface import BoxPlan
    from boxd.config import Config

STOP_GRACE = 5.0
"""Seconds between the request to end and the end by force."""
PROGRAMS = {"runc": "--version", "ip": "-V", "nft": "--version"}


class RuncBackend:
    """Boxes as runc containers on this host.

    Critical sections: the calls for one box are serialised by a lock per box, so that no step of
    one interleaves with a step of another. `_slots` and `_locks` change only between two awaits.
    """

    name = "runc"

    def __init__(
        self,
        config: Config,
        *,
        init: tuple[str, ...] = bundle.INIT,
        stop_grace: float = STOP_GRACE,
        resolv_conf: Path = RESOLV_CONF,
        judge: Callable[[Path], Awaitable[criu.Verdict]] = criu.verdict,
    ) -> None:
        """`init` is the command line of every box's first process; `resolv_conf` names the
        resolvers that boxes may use; `judge` says whether boxes can be suspended here, from the
        state directory."""
        self._names = HostNames(config.instance, config.state_dir.resolve())
        self._records = Records(self._names)
        self._network = Network(self._names, resolv_conf)
        self._disks = Disks(self._names, config.boxes_size)
        self._containers = Containers(
            self._names, self._network, self._disks, init, fuse=config.mount_in_box
        )
        self._memory = RuncMemory(self._containers)
        self._origins = Origins(self._names)
        self._snapshots = RuncSnapshots(
            self._containers, self._memory, self._records, self._origins
        )
        self._judge = judge
        self._stop_grace = stop_grace
        self._slots: dict[str, int] = {}
        self._locks = BoxLocks()
        self._tidying: set[asyncio.Task[None]] = set()

    async def setup(self) -> None:
        """Checks tools and cgroups, reserves the network, loads the fence, adopts boxes."""
        if os.geteuid() != 0:
            raise Unavailable("boxes need root; start the service as root")
        for program, option in PROGRAMS.items():
            await run(program, option)
        self._containers.detect()
        parent = self._names.cgroup_parent
        hostshares.lift_and_tell()
        cgroups.prepare_parent(self._containers.layout, parent, memory_for_boxes())
        self._names.boxes_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._names.runc_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._network.setup()
        self._slots = {r.plan.box_id: r.slot for r in self._records.all()}
        await self._disks.open()
        self._origins.keep(self._disks.snapshots())
        verdict = self._memory.verdict = await self._judge(self._names.state_dir)
        if verdict.suspends and verdict.program is not None:
            await criu_cache.keep(verdict.program.path)
        await asyncio.gather(*(self._adopt(record) for record in self._records.all()))

    async def close(self) -> None:
        """Gives the network back if no box uses it; boxes go on."""
        await asyncio.gather(*self._tidying)
        if not self._containers.ready:
            return
        await self._network.release()
        if any(self._names.netns_path(r.plan.box_id).exists() for r in self._records.all()):
            return
        await self._network.close()
        await self._disks.close()
        criu_cache.drop()
        await cgroups.remove(self._containers.layout, self._names.cgroup_parent)
        for directory in (self._names.runc_root, self._names.runc_root.parent):
            with suppress(FileNotFoundError):
                directory.rmdir()
        self._containers.forget_layout()

    def capabilities(self) -> Capabilities:
        """Suspend and fork where CRIU has shown that it works."""
        return Capabilities(
            suspend=not self._memory.why_not,
            fork=not self._memory.why_not,
            snapshot=True,
            disk_limit=self._disks.for_new.limits_size(),
            any_image=False,
            why_no_suspend=self._memory.why_not,
            attaches_drives=not self._containers.fuse,
        )

    async def expect(self, roots: Mapping[str, Path], first: str) -> None:
        """Boxes stand on the roots themselves: nothing takes long, and nothing is kept."""

    async def create(self, plan: BoxPlan) -> None:
        """Makes record, layer, root, network with its fence. What is there already stays."""
        async with self._locks.alone(plan.box_id):
            known = self._records.find(plan.box_id)
            layers = self._disks.for_new if known is None else self._disks.named(known.disk)
            record = Record(self._slot(plan.box_id), plan, layers.kind)
            paths = self._names.paths(plan.box_id)
            try:
                paths.bundle.mkdir(parents=True, exist_ok=True, mode=0o700)
                await self._records.put(record)
                await layers.create(paths, plan.disk_mb)
                if not mounts.is_mounted(paths.root):
                    self._containers.furnish(record)
                await self._containers.prepare(record)
            except BaseException:
                if known is None:
                    await to_the_end(self._remove(plan.box_id))
                elif not self._containers.runs(plan.box_id):
                    await to_the_end(self._containers.release(record))
                raise

    async def start(self, box_id: str) -> None:
        """Starts the init. A box whose init lives goes on as it is."""
        async with self._locks.alone(box_id):
            record = self._records.get(box_id)
            if self._containers.runs(box_id):
                await self._memory.thaw(record)
                return
            await self._memory.discard(record)
            try:
                await self._containers.forget(box_id)
                await self._containers.prepare(record)
                await self._containers.run(record)
            except BaseException:
                await to_the_end(self._containers.release(record))
                raise

    async def stop(self, box_id: str) -> None:
        """Ends all processes, then removes mount, network and cgroup; layer and memory stay."""
        async with self._locks.alone(box_id):
            record = self._readable(box_id)
            if record is None:
                if not self._containers.runs(box_id):
                    self._records.get(box_id)  # raises
                await self._containers.abandon(box_id)
                return
            await self._memory.before_end(record)
            await self._containers.end(box_id, self._stop_grace)
            await self._containers.release(record)

    async def destroy(self, box_id: str) -> None:
        """Removes the box at once, whatever runs in it."""
        async with self._locks.alone(box_id):
            await self._remove(box_id)

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Attaches the mount at `source`; nothing to do when that very mount is there already."""
        async with self._locks.alone(box_id):
            self._records.get(box_id)
            with self._containers.init(box_id) as (pid, pidfd):
                await drivemount.attach(pid, pidfd, source)

    async def detach_drive(self, box_id: str) -> None:
        """Takes the drive away."""
        async with self._locks.alone(box_id):
            self._records.get(box_id)
            if not self._containers.runs(box_id):
                return
            with self._containers.init(box_id) as (_, pidfd):
                await drivemount.detach(pidfd)

    async def list(self) -> list[BackendBox]:
        """Every box with a record, and what has a disk without one: its row tells what it is."""
        found = {r.plan.box_id: self._memory.look(r) for r in self._records.all()}
        others = (self._disks.box_ids() | set(self._records.ids())) - found.keys()
        found |= {one: BackendBox(one, self._containers.runs(one)) for one in others}
        return [found[box_id] for box_id in sorted(found)]

    async def stats(self, box_id: str) -> BoxStats:
        """From the cgroup; zeros but for the disk when the box does not run."""
        record = self._records.get(box_id)
        used = cgroups.usage(self._containers.layout, self._names.cgroup(box_id))
        size = await self._disks.named(record.disk).used(self._names.paths(box_id))
        received, sent = links.traffic(self._names.link(record.slot))
        return BoxStats(used.cpu_s, used.memory_bytes, size, used.pids, received, sent)

    async def tcp_socket(self, box_id: str, family: int) -> socket.socket | None:
        """See Backend."""
        return await inside.tcp_socket(self._names, box_id, family)

    async def freeze(self, box_id: str) -> None:
        """Has its processes stand still; nothing passes its link."""
        async with self._locks.alone(box_id):
            await self._memory.freeze(self._records.get(box_id))

    async def save_memory(self, box_id: str) -> None:
        """Writes the memory of a frozen box; Conflict with CRIU's words when it cannot be kept."""
        async with self._locks.alone(box_id):
            await self._memory.save(self._records.get(box_id))

    async def thaw(self, box_id: str) -> None:
        """Discards its memory on the disk and has the box run on; Conflict when it is not alive."""
        async with self._locks.alone(box_id):
            await self._memory.thaw(self._records.get(box_id))

    async def resume(self, box_id: str, drive: Path | None) -> None:
        """Brings a stopped box back with its memory, its link and its address."""
        async with self._locks.alone(box_id):
            await self._memory.resume(self._records.get(box_id), drive)
            # Whatever else is done with the box waits for it; the box itself does not.
            task = asyncio.create_task(self._tidy(box_id), name=f"tidy {box_id}")
            self._tidying.add(task)
            task.add_done_callback(self._tidying.discard)

    async def discard_memory(self, box_id: str) -> None:
        """Removes its memory on the disk."""
        async with self._locks.alone(box_id):
            await self._memory.discard(self._records.get(box_id))

    async def snapshot(self, box_id: str, snapshot_id: str, *, lasting: bool = True) -> None:
        """Keeps layer and memory; of a frozen box, as they are in this moment."""
        async with self._locks.alone(box_id):
            record = self._records.get(box_id)
            await self._snapshots.take(record, snapshot_id, lasting=lasting)

    async def snapshot_bytes(self, snapshot_id: str) -> int:
        """Layer and memory."""
        return await self._disks.holding(snapshot_id).snapshot_used(snapshot_id)

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Boxes that were made from it go on."""
        await self._snapshots.drop(snapshot_id)

    async def snapshots(self) -> tuple[str, ...]:
        """Of all disks that are there."""
        return tuple(self._disks.snapshots())

    async def restore_snapshot(self, box_id: str, snapshot_id: str) -> None:
        """Replaces layer and memory of a stopped box."""
        async with self._locks.alone(box_id):
            await self._snapshots.restore(self._records.get(box_id), snapshot_id)

    async def clone(self, plan: BoxPlan, snapshot_id: str) -> None:
        """Makes record and bundle, and layer and memory from the snapshot's. A box that is there
        stays."""
        async with self._locks.alone(plan.box_id):
            layers = self._disks.holding(snapshot_id)
            if self._records.find(plan.box_id) is not None:
                return
            record = Record(self._slot(plan.box_id), plan, layers.kind)
            record = self._snapshots.standing(record, snapshot_id)
            paths = self._names.paths(plan.box_id)
            try:
                paths.bundle.mkdir(parents=True, exist_ok=True, mode=0o700)
                await layers.clone(snapshot_id, paths, plan.disk_mb)
                await self._snapshots.appropriate(record)  # with the record, at last
            except BaseException:
                await to_the_end(self._remove(plan.box_id))
                raise

    # Steps of one box; its lock is held.

    def _slot(self, box_id: str) -> int:
        """The box's slot, or a new one."""
        if box_id not in self._slots:
            self._slots[box_id] = subnets.free_slot(set(self._slots.values()))
        return self._slots[box_id]

    async def _tidy(self, box_id: str) -> None:
        async with self._locks.alone(box_id):
            record = self._readable(box_id)
            if record is not None:
                with suppress(Unavailable, OSError):  # the next memory of the box takes its place
                    await self._memory.tidy(record)

    def _readable(self, box_id: str) -> Record | None:
        """Its record; None also when that cannot be read."""
        try:
            return self._records.find(box_id)
        except Unavailable:
            return None

    async def _adopt(self, record: Record) -> None:
        async with self._locks.alone(record.plan.box_id):
            await self._memory.settle(record)
            if self._containers.runs(record.plan.box_id):
                await self._containers.connect(record)
            elif self._containers.holds(record):  # it died while no service ran
                await self._containers.release(record)

    async def _remove(self, box_id: str) -> None:
        paths = self._names.paths(box_id)
        record = self._readable(box_id)
        if record is None:
            await self._containers.abandon(box_id)
        else:
            await self._containers.end(box_id, 0)
            await self._containers.release(record)
        await self._disks.remove(paths)
        await asyncio.to_thread(trees.remove_tree, paths.directory)
        self._slots.pop(box_id, None)
