"""Snapshots of boxes of runc, with their memory, and boxes that are made from them.

Memory and layer of a frozen box are those of one moment: nothing in it moves between the dump and
the copy. What is made from a snapshot gets the memory's image with a manifest of its own, and then
differs in nothing from a box that sleeps.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends import memory_image, trees
from boxd.errors import Conflict, MemoryLost, NotFound

if TYPE_CHECKING:
    from boxd.backends.containers import Containers
    from boxd.backends.origins import Origins
    from boxd.backends.records import Record, Records
    from boxd.backends.runc_memory import RuncMemory


class RuncSnapshots:
    """The steps for one box; the backend serialises the calls for it."""

    def __init__(
        self, containers: Containers, memory: RuncMemory, records: Records, origins: Origins
    ) -> None:
        self._containers = containers
        self._memory = memory
        self._records = records
        self._origins = origins

    def standing(self, record: Record, snapshot_id: str) -> Record:
        """A box that is made of a snapshot stands on the image that the snapshot stands on."""
        origin = self._origins.find(snapshot_id)
        if origin is None:
            return record
        return replace(record, plan=replace(record.plan, rootfs=origin.plan.rootfs))

    async def take(self, record: Record, snapshot_id: str, *, lasting: bool) -> None:
        """Of a box that is frozen or does not run; Conflict of another one."""
        box_id = record.plan.box_id
        paths, layers = self._containers.paths(box_id), self._containers.disk(record)
        found = self._memory.look(record)
        if found.running and not found.frozen:
            raise Conflict("the box runs; freeze it first")
        if not found.memory:
            await self._memory.discard(record)  # what is there cannot be used
        await asyncio.to_thread(self._origins.put, snapshot_id, record)  # waits for the disk
        if not found.frozen or found.memory:
            await layers.snapshot(paths, snapshot_id)
            return
        images = await self._memory.save_aside(record, lasting=lasting)
        try:
            await layers.snapshot(paths, snapshot_id, memory=images)
        finally:
            await self._memory.discard(record)

    async def drop(self, snapshot_id: str) -> None:
        """No error if there is none."""
        try:
            layers = self._containers.disks.holding(snapshot_id)
        except NotFound:
            return
        await layers.drop_snapshot(snapshot_id)
        self._origins.drop(snapshot_id)

    async def restore(self, record: Record, snapshot_id: str) -> None:
        """Into a box that does not run."""
        box_id = record.plan.box_id
        paths, disks = self._containers.paths(box_id), self._containers.disks
        layers = disks.holding(snapshot_id)
        record = self.standing(record, snapshot_id)
        if self._containers.runs(box_id):
            raise Conflict("the box runs; stop it first")
        await self._containers.release(record)
        await layers.create(paths, record.plan.disk_mb)
        await layers.restore(snapshot_id, paths, record.plan.disk_mb)
        if layers.kind != record.disk:
            before = disks.named(record.disk)
            record = replace(record, disk=layers.kind)
            await self._records.put(record)
            await before.remove_layer(paths)
        await self.appropriate(record)

    async def appropriate(self, record: Record) -> None:
        """Makes a layer and memory that came from a snapshot those of this box."""
        paths = self._containers.paths(record.plan.box_id)
        place = self._containers.disk(record).memory_dir(paths)
        paths.root.mkdir(mode=0o755, exist_ok=True)
        try:
            _, state = await asyncio.to_thread(memory_image.read, place)
        except MemoryLost:
            await asyncio.to_thread(trees.remove_tree, place)
        else:
            # Its processes have files of the runtime open with which they were started.
            record = replace(record, plan=replace(record.plan, runtime=Path(state.runtime)))
        self._containers.call_by_name(record)
        self._containers.configure(record)
        if place.exists():
            digest = self._memory.digest(record)
            await asyncio.to_thread(memory_image.adopt, place, record.plan.box_id, digest)
        await self._records.put(record)
