"""The saved memories of runc boxes: where they are, and what they belong to.

A suspension has four steps: freeze, dump, publish, end. Until the memory is published, the box is
alive and needs only a thaw. After that it must not run again unless the published memory is
discarded first. So two facts show which step was interrupted: is the box alive, and is there
memory? A restore creates a mark in the memory before any process of the box runs. If the memory has
the mark and the box is not alive, the memory is lost.

`suspension` has the steps to the published memory, and `resumption` has those of the restore.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import dump_restore, memory_image
from boxd.backends.host import cgroups, mounts
from boxd.backends.interface import BackendBox
from boxd.backends.oci.bundle import DRIVE_DIR
from boxd.errors import Conflict, Unavailable, Unsupported

if TYPE_CHECKING:
    from boxd.backends.checkpoint.criu import Verdict
    from boxd.backends.records import Record
    from boxd.backends.runc.containers import Containers

_CPU = ("vendor_id", "cpu family", "model", "flags")


class RuncMemory:
    """The memories of boxes on their disks. The backend serialises the calls for each box.

    `verdict` says whether boxes can be suspended here. It is None until the backend is set up.
    """

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        self.verdict: Verdict | None = None

    def look(self, record: Record) -> BackendBox:
        """Return the state of a box. Without its disk, it has no memory."""
        box_id = record.plan.box_id
        running = self._containers.runs(box_id)
        frozen = running and self._containers.is_frozen(box_id)
        memory = False
        with suppress(Unavailable):
            memory = memory_image.is_there(self.place(record))
        return BackendBox(box_id, running, frozen, memory)

    @property
    def why_not(self) -> str:
        """Why boxes cannot be suspended here, or "" if they can."""
        if self.verdict is None:
            return "boxes cannot suspend: the backend is not set up"
        return "" if self.verdict.suspends else self.verdict.text

    def tools(self) -> dump_restore.Tools:
        """Return the tools for dumps and restores.

        Raises Unsupported if boxes cannot be suspended.
        """
        if self.verdict is None or self.verdict.program is None or not self.verdict.suspends:
            raise Unsupported(self.why_not)
        names = self._containers.names
        own = tuple(cgroups.own_files(self._containers.layout))
        return dump_restore.Tools(self.verdict.program.path, names.runc_root, names.masks, own)

    def require_running(self, record: Record) -> None:
        """Raise Conflict if the box is not running."""
        if not self._containers.runs(record.plan.box_id):
            raise Conflict("the box is not running")

    async def before_end(self, record: Record) -> None:
        """Discard the memory of a box that runs; it is stale once the box has ended."""
        box_id = record.plan.box_id
        if self._containers.runs(box_id) and not self._containers.is_frozen(box_id):
            await self.discard(record)

    async def discard(self, record: Record) -> None:
        """Remove the box's memory durably. No error if there is none."""
        await asyncio.to_thread(_discard, self.place(record))

    async def tidy(self, record: Record) -> None:
        """Remove the remains of a memory image that was used or is incomplete."""
        await asyncio.to_thread(memory_image.drop_rests, self.place(record))

    def digest(self, record: Record) -> str:
        """Return the digest of the box's configuration."""
        bundle = self._containers.paths(record.plan.box_id).bundle
        return hashlib.sha256((bundle / "config.json").read_bytes()).hexdigest()

    def facts(self, record: Record) -> memory_image.Facts:
        """Return what a memory must match: the box, its configuration, and this host."""
        tools = self.verdict.tools if self.verdict is not None else ""
        return memory_image.Facts(
            box_id=record.plan.box_id, bundle=self.digest(record), host=f"{tools} {_cpu()}"
        )

    def place(self, record: Record) -> Path:
        """Return the directory of the box's memory. Raises Unavailable without its disk."""
        paths = self._containers.paths(record.plan.box_id)
        return self._containers.disk(record).memory_dir(paths)

    def upper(self, record: Record) -> Path:
        """Return the directory of the box's own files."""
        paths = self._containers.paths(record.plan.box_id)
        return self._containers.disk(record).upper(paths)

    def root(self, record: Record) -> Path:
        """Return the directory where the box's root can be changed, mounted or not."""
        return self._containers.root(record.plan.box_id) or self.upper(record)

    def address(self, record: Record) -> str:
        """Return the address of the box."""
        return str(self._containers.network.address(record.slot).box)


def has_drive(pid: int) -> bool:
    """Whether the drive is mounted for a process of a box."""
    return mounts.device_at(Path(f"/proc/{pid}/mountinfo"), DRIVE_DIR) is not None


def _discard(place: Path, *, sync: bool = True) -> None:
    memory_image.forget(place, sync=sync)
    memory_image.drop_rests(place)


def _cpu() -> str:
    """Return a digest of the CPU as processes see it: its model and its features."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    fields = dict(line.split("\t: ", 1) for line in first.splitlines() if "\t: " in line)
    values = [fields.get(name) or fields.get(f"{name}\t", "") for name in _CPU]
    return "cpu " + hashlib.sha256("\n".join(values).encode()).hexdigest()[:16]
