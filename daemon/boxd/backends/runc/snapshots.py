"""Takes snapshots of runc boxes, with their memory, and creates boxes from them.

Memory and layer of a frozen box are consistent: nothing changes between the dump and the copy. A
box created from a snapshot gets the memory image with a new manifest. After that it does not differ
from a suspended box.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import memory_image
from boxd.backends.host import trees
from boxd.errors import Conflict, MemoryLost, NotFound

if TYPE_CHECKING:
    from boxd.backends.records import Record, Records
    from boxd.backends.runc.containers import Containers
    from boxd.backends.runc.memory import RuncMemory
    from boxd.backends.runc.origins import Origins
    from boxd.backends.runc.suspension import RuncSuspension


class RuncSnapshots:
    """The steps for one box. The backend serialises the calls for each box."""

    def __init__(
        self,
        containers: Containers,
        memory: RuncMemory,
        suspension: RuncSuspension,
        records: Records,
        origins: Origins,
    ) -> None:
        self._containers = containers
        self._memory = memory
        self._suspension = suspension
        self._records = records
        self._origins = origins

    def on_origin(self, record: Record, snapshot_id: str) -> Record:
        """Return the record with the image version on which the snapshot was written."""
        origin = self._origins.find(snapshot_id)
        if origin is None:
            return record
        return replace(record, plan=replace(record.plan, rootfs=origin.plan.rootfs))

    async def take(self, record: Record, snapshot_id: str, *, lasting: bool, memory: bool) -> None:
        """Take a snapshot of a box that is frozen or not running. Raises Conflict if it runs.

        Without `memory`, the method dumps nothing, and does not copy an existing image.
        """
        box_id = record.plan.box_id
        paths, layers = self._containers.paths(box_id), self._containers.disk(record)
        state = self._memory.look(record)
        if state.running and not state.frozen:
            raise Conflict("the box is running; freeze it first")
        if not state.memory:
            await self._memory.discard(record)  # an incomplete image, which cannot be used
        await asyncio.to_thread(self._origins.put, snapshot_id, record)  # syncs to the disk
        if not memory:
            await layers.snapshot(paths, snapshot_id, disk_only=True)
            return
        if not state.frozen or state.memory:
            await layers.snapshot(paths, snapshot_id)
            return
        images = await self._suspension.save_aside(record, lasting=lasting)
        try:
            await layers.snapshot(paths, snapshot_id, memory=images)
        finally:
            await self._memory.discard(record)

    async def drop(self, snapshot_id: str) -> None:
        """Remove a snapshot. No error if there is none."""
        try:
            layers = self._containers.disks.holding(snapshot_id)
        except NotFound:
            return
        await layers.drop_snapshot(snapshot_id)
        self._origins.drop(snapshot_id)

    async def restore(self, record: Record, snapshot_id: str) -> None:
        """Give a stopped box the layer and the memory of a snapshot. Raises Conflict if it runs."""
        box_id = record.plan.box_id
        paths, disks = self._containers.paths(box_id), self._containers.disks
        layers = disks.holding(snapshot_id)
        record = self.on_origin(record, snapshot_id)
        if self._containers.runs(box_id):
            raise Conflict("the box is running; stop it first")
        await self._containers.release(record)
        await layers.create(paths, record.plan.disk_mb)
        await layers.restore(snapshot_id, paths, record.plan.disk_mb)
        if layers.kind != record.disk:
            old_disk = disks.named(record.disk)
            record = replace(record, disk=layers.kind)
            await self._records.put(record)
            await old_disk.remove_layer(paths)
        await self.appropriate(record)

    async def appropriate(self, record: Record) -> None:
        """Adapt layer and memory that came from a snapshot to this box."""
        paths = self._containers.paths(record.plan.box_id)
        place = self._containers.disk(record).memory_dir(paths)
        lxcfs = own_users = False  # without memory, the next start decides
        try:
            _, state = await asyncio.to_thread(memory_image.read, place)
        except MemoryLost:
            await asyncio.to_thread(trees.remove_tree, place)
        else:
            # The processes have open files of the runtime with which they were started.
            record = replace(record, plan=replace(record.plan, runtime=Path(state.runtime)))
            lxcfs, own_users = state.lxcfs, state.own_users
        self._containers.rename(record)
        by = await self._containers.own_id_map(record) if own_users else None
        self._containers.configure(record, by, lxcfs=lxcfs)
        if place.exists():
            digest = self._memory.digest(record)
            await asyncio.to_thread(memory_image.adopt, place, record.plan.box_id, digest)
        await self._records.put(record)
