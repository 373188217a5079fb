"""The default backend: one OCI container per box, run by `runc`, detached from the daemon.

The state of a box is on the host, not in this object: its directory with `box.json`, its processes
and its mounts. So a new object on the same state directory adopts the boxes of an earlier one.

*Measured* p50 of 40 boxes of `debian` on 2 cores with a load of 3 to 4: create 33 ms, start 97 ms
(of it `runc run` 84), attach a drive 56 ms, destroy 84 ms. For 10 boxes with a busybox root and
less load: create 18 ms, start 47 ms, destroy 52 ms, `list` 2 ms.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.backends.box_locks import BoxLocks
from boxd.backends.checkpoint import criu, criu_cache
from boxd.backends.disks.kinds import Disks
from boxd.backends.host import cgroups, processes, shares, trees
from boxd.backends.host.files import memory_for_boxes
from boxd.backends.host.names import HostNames
from boxd.backends.host.run import run
from boxd.backends.interface import BackendBox, BoxStats, Capabilities, InitState
from boxd.backends.network import inside, links, subnets
from boxd.backends.network.host_network import RESOLV_CONF, Network
from boxd.backends.oci import bundle, drive_mount, inner_containers, masks
from boxd.backends.records import Record, Records
from boxd.backends.runc.containers import Containers
from boxd.backends.runc.memory import RuncMemory
from boxd.backends.runc.origins import Origins
from boxd.backends.runc.resumption import RuncResumption
from boxd.backends.runc.snapshots import RuncSnapshots
from boxd.backends.runc.suspension import RuncSuspension
from boxd.cancellation import to_the_end
from boxd.errors import BoxdError, Conflict, Unavailable, Unsupported
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from pathlib import Path

    from boxd.backends.interface import BoxPlan
    from boxd.config import Config

LOOK_EVERY = 2.0
"""Seconds between two checks for an lxcfs that has died."""
STOP_GRACE = 5.0
"""Seconds that processes get to exit before they are killed."""
_log = logging.getLogger(__name__)
PROGRAMS = {"runc": "--version", "ip": "-V", "nft": "--version"}


class RuncBackend:
    """Boxes as runc containers on this host.

    Critical sections: a lock per box serialises the calls for that box, so that their steps do not
    interleave. `_slots` and `_locks` change only between two awaits.
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
        """`init` is the command line of the first process of every box.

        `resolv_conf` names the resolvers that boxes may use. `judge` gets the state directory and
        decides whether boxes can be suspended here.
        """
        self._names = HostNames(config.instance, config.state_dir.resolve())
        self._records = Records(self._names)
        self._network = Network(self._names, resolv_conf)
        self._disks = Disks(self._names, config.boxes_size)
        self._containers = Containers(
            self._names,
            self._network,
            self._disks,
            init,
            fuse=config.mount_in_box,
            privileged=config.privileged_boxes,
        )
        self._memory = RuncMemory(self._containers)
        self._suspension = RuncSuspension(self._containers, self._memory)
        self._resumption = RuncResumption(self._containers, self._memory)
        self._origins = Origins(self._names)
        self._snapshots = RuncSnapshots(
            self._containers, self._memory, self._suspension, self._records, self._origins
        )
        self._judge = judge
        self._stop_grace = stop_grace
        self._slots: dict[str, int] = {}
        self._with_containers: set[str] = set()
        self._locks = BoxLocks()
        self._tidying = BackgroundTasks()
        self._looking = BackgroundTasks()

    async def setup(self) -> None:
        """Check tools and cgroups, reserve the network, load the fence and adopt existing boxes."""
        if os.geteuid() != 0:
            raise Unavailable("boxes need root; start the service as root")
        for program, option in PROGRAMS.items():
            await run(program, option)
        self._containers.detect()
        parent = self._names.cgroup_parent
        shares.lift_and_log()
        cgroups.prepare_parent(self._containers.layout, parent, memory_for_boxes())
        self._names.boxes_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._names.runc_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        masks.setup(self._names.masks, bundle.MASKED_PATHS)
        await asyncio.to_thread(self._containers.ranges.setup)
        await asyncio.to_thread(self._containers.require_id_maps, [self._names.boxes_dir])
        await self._network.setup()
        self._slots = {r.plan.box_id: r.slot for r in self._records.all()}
        await self._disks.open()
        self._origins.keep(self._disks.snapshots())
        verdict = self._memory.verdict = await self._judge(self._names.state_dir)
        if verdict.suspends and verdict.program is not None:
            await criu_cache.keep(verdict.program.path)
        await self._containers.lxcfs.setup(self._containers.layout)
        await asyncio.gather(*(self._adopt(record) for record in self._records.all()))
        self._looking.start(self._look_after_lxcfs(), name="look after lxcfs")
        self._looking.start(self._look_after_cgroups(), name="look after cgroups")

    async def close(self) -> None:
        """Release the network and the ids if no box uses them. Boxes continue to run."""
        await self._tidying.join()
        await self._looking.close()
        if not self._containers.ready:
            return
        await self._containers.lxcfs.settle()
        await self._network.release()
        if any(map(self._containers.holds, self._records.all())):
            return
        await self._network.close()
        await self._disks.close()
        criu_cache.drop()
        masks.remove(self._names.masks)
        await asyncio.to_thread(self._containers.forget_id_maps)
        self._containers.lxcfs.close()
        await cgroups.remove(self._containers.layout, self._names.cgroup_parent)
        for directory in (self._names.runc_root, self._names.runc_root.parent):
            with suppress(FileNotFoundError):
                directory.rmdir()
        self._containers.forget_layout()

    def capabilities(self) -> Capabilities:
        """Return the capabilities; suspend and fork need a CRIU that has passed its trial."""
        return Capabilities(
            suspend=not self._memory.why_not,
            fork=not self._memory.why_not,
            snapshot=True,
            disk_limit=self._disks.for_new.limits_size(),
            any_image=False,
            why_no_suspend=self._memory.why_not,
            attaches_drives=not self._containers.fuse,
            call_filter=bundle.call_filter(),
        )

    async def require_kind(self, runtime: str, *, containers: bool) -> None:
        """Raise Unsupported for a runtime other than runc, or containers as root of the host."""
        if runtime not in ("", self.name):
            raise Unsupported(
                f"this host cannot run boxes with the runtime {runtime!r}, only with runc: choose "
                "another flavor. For other runtimes, the operator starts the service with "
                "--backend docker"
            )
        if containers and self._containers.privileged:
            raise Unsupported(
                "boxes here are root of the host (--privileged-boxes), so they get no rights to "
                "run containers: choose another flavor"
            )

    async def expect(self, roots: Mapping[str, Path], first: str) -> None:
        """Do nothing: boxes use the roots directly, so nothing has to be prepared or removed."""

    async def create(self, plan: BoxPlan) -> None:
        """Create record, layer, root, network and fence. Existing parts are not changed."""
        async with self._locks.alone(plan.box_id):
            existing = self._records.find(plan.box_id)
            layers = self._disks.for_new if existing is None else self._disks.named(existing.disk)
            record = Record(self._slot(plan.box_id), plan, layers.kind)
            paths = self._names.paths(plan.box_id)
            try:
                paths.bundle.mkdir(parents=True, exist_ok=True, mode=0o700)
                await self._records.put(record)
                await layers.create(paths, plan.disk_mb)
                if self._containers.root(plan.box_id) is None:
                    self._containers.furnish(record)
                by = await self._containers.id_map(record)
                await self._containers.prepare(record, by)
            except BaseException:
                if existing is None:
                    await to_the_end(self._remove(plan.box_id))
                elif not self._containers.runs(plan.box_id):
                    await to_the_end(self._containers.release(record))
                raise

    async def start(self, box_id: str) -> None:
        """Start the init, or thaw a box whose init is alive."""
        async with self._locks.alone(box_id):
            record = self._records.get(box_id)
            if self._containers.runs(box_id):
                await self._suspension.thaw(record)
                return
            await self._memory.discard(record)
            try:
                await self._containers.forget(box_id)
                by = await self._containers.id_map(record)
                await self._containers.prepare(record, by)
                await self._containers.run(record, by)
                if record.plan.containers:
                    self._with_containers.add(box_id)
            except BaseException:
                await to_the_end(self._containers.release(record))
                raise

    async def stop(self, box_id: str) -> None:
        """End all processes, then remove mount, network and cgroup. Layer and memory stay.

        RootHeld: the box is stopped, but cannot start while a process of the host uses its root.
        """
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
            await self._containers.require_unused(record)

    async def init_state(self, box_id: str) -> InitState:
        """Return the state of the init's main thread from /proc."""
        with suppress(Conflict), self._containers.init(box_id) as (pid, _):
            return processes.init_state(pid)
        return InitState()

    async def suspect_inits(self, box_ids: Collection[str]) -> set[str]:
        """Compare the recorded pids with the live processes."""
        return await asyncio.to_thread(self._suspect_inits, tuple(box_ids))

    async def destroy(self, box_id: str) -> None:
        """Remove the box at once, even if it runs."""
        async with self._locks.alone(box_id):
            await self._remove(box_id)

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Mount the drive at `source` in the box. Does nothing if it is mounted there already."""
        async with self._locks.alone(box_id):
            self._records.get(box_id)
            with self._containers.init(box_id) as (pid, pidfd):
                await drive_mount.attach(pid, pidfd, source)

    async def detach_drive(self, box_id: str) -> None:
        """Unmount the drive in the box."""
        async with self._locks.alone(box_id):
            self._records.get(box_id)
            if not self._containers.runs(box_id):
                return
            with self._containers.init(box_id) as (pid, pidfd):
                await drive_mount.detach(pid, pidfd)

    async def list(self) -> list[BackendBox]:
        """Return every box that has a record or a disk."""
        boxes = {r.plan.box_id: self._memory.look(r) for r in self._records.all()}
        # Boxes without a readable record; the database has their rows.
        others = (self._disks.box_ids() | set(self._records.ids())) - boxes.keys()
        boxes |= {box_id: BackendBox(box_id, self._containers.runs(box_id)) for box_id in others}
        return [boxes[box_id] for box_id in sorted(boxes)]

    async def stats(self, box_id: str) -> BoxStats:
        """Return the figures of the cgroup. A stopped box has only those of the disk."""
        record = self._records.get(box_id)
        used = cgroups.usage(self._containers.layout, self._names.cgroup(box_id))
        disk, paths = self._disks.named(record.disk), self._names.paths(box_id)
        size = await disk.used(paths)
        rx_bytes, tx_bytes = links.traffic(self._names.link(record.slot))
        return BoxStats(
            cpu_s=used.cpu_s,
            memory_bytes=used.memory_bytes,
            disk_bytes=size,
            pids=used.pids,
            net_rx_bytes=rx_bytes,
            net_tx_bytes=tx_bytes,
            oom_kills=used.oom_kills,
            saved_memory_bytes=await disk.memory_used(paths),
        )

    async def oom_kills(self, box_id: str) -> int:
        """Return the count of the box's cgroup."""
        return cgroups.oom_kills(self._containers.layout, self._names.cgroup(box_id))

    async def tcp_socket(self, box_id: str, family: int) -> socket.socket | None:
        """Return a TCP socket in the box's network namespace."""
        return await inside.tcp_socket(self._names, box_id, family)

    async def freeze(self, box_id: str) -> None:
        """Freeze the box's processes and take down its link."""
        async with self._locks.alone(box_id):
            await self._suspension.freeze(self._records.get(box_id))

    async def save_memory(self, box_id: str) -> None:
        """Write the memory of a frozen box.

        Raises Conflict with the reason if it cannot be saved.
        """
        async with self._locks.alone(box_id):
            await self._suspension.save(self._records.get(box_id))

    async def thaw(self, box_id: str) -> None:
        """Discard the memory image and thaw the box. Raises Conflict if the box is not running."""
        async with self._locks.alone(box_id):
            await self._suspension.thaw(self._records.get(box_id))

    async def resume(self, box_id: str, drive: Path | None) -> None:
        """Restore a stopped box with its memory, its link and its address."""
        async with self._locks.alone(box_id):
            await self._resumption.resume(self._records.get(box_id), drive)
            # The clean-up holds the lock of the box, but the box itself already runs.
            self._tidying.start(self._tidy(box_id), name=f"tidy {box_id}")

    async def discard_memory(self, box_id: str) -> None:
        """Remove the box's memory on the disk."""
        async with self._locks.alone(box_id):
            await self._memory.discard(self._records.get(box_id))

    async def snapshot(
        self, box_id: str, snapshot_id: str, *, lasting: bool = True, memory: bool = True
    ) -> None:
        """Copy layer and memory, or the layer alone.

        Layer and memory of a frozen box are consistent.
        """
        async with self._locks.alone(box_id):
            record = self._records.get(box_id)
            await self._snapshots.take(record, snapshot_id, lasting=lasting, memory=memory)

    async def snapshot_bytes(self, snapshot_id: str) -> int:
        """Return the size of layer and memory."""
        return await self._disks.holding(snapshot_id).snapshot_used(snapshot_id)

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot. Boxes created from it are not affected."""
        await self._snapshots.drop(snapshot_id)

    async def snapshots(self) -> tuple[str, ...]:
        """Return the snapshots of all available disks."""
        return tuple(self._disks.snapshots())

    async def restore_snapshot(self, box_id: str, snapshot_id: str) -> None:
        """Replace layer and memory of a stopped box."""
        async with self._locks.alone(box_id):
            await self._snapshots.restore(self._records.get(box_id), snapshot_id)

    async def rename(self, box_id: str, hostname: str) -> None:
        """Write the name into record, layer and UTS namespace."""
        async with self._locks.alone(box_id):
            record = self._records.get(box_id)
            plan = replace(record.plan, hostname=hostname, template=False)
            await self._containers.rename_running(replace(record, plan=plan))
            await self._records.put(replace(record, plan=plan))

    async def clone(self, plan: BoxPlan, snapshot_id: str) -> None:
        """Create record and bundle, and copy layer and memory from the snapshot.

        An existing box is not changed.
        """
        async with self._locks.alone(plan.box_id):
            layers = self._disks.holding(snapshot_id)
            if self._records.find(plan.box_id) is not None:
                return
            record = Record(self._slot(plan.box_id), plan, layers.kind)
            record = self._snapshots.on_origin(record, snapshot_id)
            paths = self._names.paths(plan.box_id)
            try:
                paths.bundle.mkdir(parents=True, exist_ok=True, mode=0o700)
                await layers.clone(snapshot_id, paths, plan.disk_mb)
                await self._snapshots.appropriate(record)  # writes the record as the last step
            except BaseException:
                await to_the_end(self._remove(plan.box_id))
                raise

    # Steps of one box. The caller holds its lock.

    def _slot(self, box_id: str) -> int:
        """Return the box's slot, or assign a free one."""
        if box_id not in self._slots:
            self._slots[box_id] = subnets.free_slot(set(self._slots.values()))
        return self._slots[box_id]

    async def _tidy(self, box_id: str) -> None:
        async with self._locks.alone(box_id):
            record = self._readable(box_id)
            if record is not None:
                with suppress(Unavailable, OSError):  # the box's next memory image replaces it
                    await self._memory.tidy(record)

    async def _look_after_lxcfs(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for box_id in self._containers.lxcfs.lost():
                try:
                    await self._renew_lxcfs(box_id)
                except (BoxdError, OSError) as error:
                    _log.warning("lxcfs was not restarted: %s", error, extra={"box": box_id})

    async def _look_after_cgroups(self) -> None:
        """End boxes that run containers and have too many cgroups."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for box_id in sorted(self._with_containers):
                cgroup = self._names.cgroup(box_id)
                look = inner_containers.has_too_many_cgroups
                if not await asyncio.to_thread(look, self._containers.layout, cgroup):
                    continue
                _log.warning("box ended: it has too many cgroups", extra={"box": box_id})
                try:
                    async with self._locks.alone(box_id):
                        await self._containers.end(box_id, 0)
                except (BoxdError, OSError) as error:
                    _log.warning("the box did not end: %s", error, extra={"box": box_id})

    async def _renew_lxcfs(self, box_id: str) -> None:
        async with self._locks.alone(box_id):
            record = self._readable(box_id)
            running = record is not None and self._containers.runs(box_id)
            if record is None or not running or self._containers.is_frozen(box_id):
                return
            _log.warning("the lxcfs of a box died; starting a new one", extra={"box": box_id})
            await self._containers.renew_lxcfs(record)

    def _readable(self, box_id: str) -> Record | None:
        """Return the box's record, or None if there is none or it cannot be read."""
        try:
            return self._records.find(box_id)
        except Unavailable:
            return None

    def _suspect_inits(self, box_ids: tuple[str, ...]) -> set[str]:
        pid_files = {box_id: self._names.paths(box_id).pid for box_id in box_ids}
        return processes.suspects(
            {box_id: processes.read_pid(file) for box_id, file in pid_files.items()}
        )

    async def _adopt(self, record: Record) -> None:
        async with self._locks.alone(record.plan.box_id):
            await self._resumption.settle(record)
            if self._containers.runs(record.plan.box_id):
                if record.plan.containers:
                    self._with_containers.add(record.plan.box_id)
                await self._containers.reconnect(record)
                await self._containers.adopt_lxcfs(record.plan.box_id)
            elif self._containers.holds(record):  # the box died while no service was running
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
        self._with_containers.discard(box_id)
