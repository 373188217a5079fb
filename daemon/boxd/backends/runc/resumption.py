"""Resumes boxes of runc with their memory, and completes what a dead service has interrupted."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.checkpoint import dump_restore, image_rewrite, lost_settings, memory_image
from boxd.backends.checkpoint.criu_images import DamagedImage
from boxd.backends.checkpoint.dump_restore import RestoreFailed, RestoreRefused
from boxd.backends.checkpoint.netns import set_up, take_back
from boxd.backends.checkpoint.restore_gate import Steps
from boxd.backends.host import mounts, processes
from boxd.backends.network import links
from boxd.backends.oci import mount_table
from boxd.backends.oci.bundle import range_of
from boxd.backends.runc.memory import has_drive
from boxd.errors import BoxdError, MemoryLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from boxd.backends.host.id_maps import IdMap
    from boxd.backends.host.id_ranges import IdRange
    from boxd.backends.records import Record
    from boxd.backends.runc.containers import Containers
    from boxd.backends.runc.memory import RuncMemory

RESTORES = 2
"""Attempts at a restore that fails before any process runs."""
AT_ONCE = 2
"""Maximum number of resumes at a time for each processor. Others wait for their turn, because more
at a time only make each of them slower."""
_log = logging.getLogger(__name__)
_DAMAGES = (DamagedImage, MemoryLost, RestoreRefused)


@dataclass(slots=True)
class _Early:
    """Work in threads beside the other steps of a resume.

    `images` adapts the images for the first attempt while the root and the drive are mounted.
    `pages` compares the pages with their sums while runc works: an earlier start would take the
    processor from the steps before runc.
    """

    images: asyncio.Task[None] | None = None
    pages: asyncio.Task[None] | None = None

    def compare(self, place: Path) -> asyncio.Task[None]:
        """Return the comparison of the pages; start it if needed."""
        if self.pages is None:
            self.pages = asyncio.create_task(asyncio.to_thread(memory_image.check_pages, place))
        return self.pages

    async def ended(self) -> None:
        """Wait until the threads no longer use the files."""
        tasks = [task for task in (self.images, self.pages) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)


class RuncResumption:
    """The steps for one box. The backend serialises the calls for each box."""

    def __init__(self, containers: Containers, memory: RuncMemory) -> None:
        self._containers = containers
        self._memory = memory
        self._turns = asyncio.Semaphore(AT_ONCE * (os.cpu_count() or 1))

    async def resume(self, record: Record, drive: Path | None) -> None:
        """Resume a stopped box. An error before the mark exists leaves its memory unchanged.

        A cancellation does not interrupt it, because memory can be used only once. `tidy` removes
        the used memory.
        """
        box_id = record.plan.box_id
        if self._containers.runs(box_id):
            return
        tools = self._memory.tools()
        try:
            state = await asyncio.to_thread(
                memory_image.check, self._memory.place(record), self._memory.facts(record)
            )
            self._require_restorable(box_id)
        except MemoryLost:
            await self._memory.discard(record)
            raise
        if not state.drive:
            drive = None
        elif drive is None:
            raise Unavailable(
                "the box had its drive mounted and can resume only with it: ask the operator to "
                "serve without --no-drive"
            )
        elif mounts.device_at(Path("/proc/self/mountinfo"), str(drive)) is None:
            raise Unavailable("the drive is not mounted on this host")
        if state.lxcfs and not self._containers.lxcfs.is_available:
            raise Unavailable(
                "lxcfs is missing on this host, and the box can resume only with it: ask the "
                "operator to run scripts/lxcfs and to restart the service"
            )
        async with self._turns:
            await _uninterrupted(self._resume(tools, record, state, drive))

    async def settle(self, record: Record) -> None:
        """Complete or undo a suspension or resume that a dead service has interrupted.

        Waits for a running dump or restore of the box, for a bounded time.
        """
        box_id = record.plan.box_id
        async with dump_restore.alone_with(self._containers.paths(box_id)):
            pass
        try:
            place = self._memory.place(record)
        except Unavailable:
            return  # the box's disk is not available
        await asyncio.to_thread(image_rewrite.clear, place, self._memory.root(record))
        if not self._containers.runs(box_id):
            await self._containers.forget(box_id)  # removes the remains of an incomplete box
            await asyncio.to_thread(memory_image.drop_rests, place)
            return
        if memory_image.is_marked(place):
            await self._complete(record)
        if not self._containers.is_frozen(box_id):
            await self._memory.discard(record)  # stale: the box has run since then
            links.switch(self._containers.names, record.slot, up=True)
        await asyncio.to_thread(memory_image.drop_rests, place)
        await self._end_if_unsafe(record)

    # Steps.

    async def _resume(
        self,
        tools: dump_restore.Tools,
        record: Record,
        state: memory_image.State,
        drive: Path | None,
    ) -> None:
        box_id = record.plan.box_id
        place = self._memory.place(record)
        names = self._containers.names
        early = _Early()
        try:
            await self._containers.forget(box_id)
            by = await self._id_map(record, state)
            early.images = asyncio.create_task(self._adapt(record, by))
            await self._containers.prepare(record, by, lxcfs=state.lxcfs)
            if by is None:
                await set_up(names.netns(box_id), None, state.address, self._memory.address(record))
            else:
                await self._containers.make_mount_points(box_id, by)
            if by is not None and drive is not None:
                drive = await self._containers.show_drive(record, drive, by)
            await self._require_lxcfs(box_id, state)
            await self._restore(tools, record, state, drive, by, early)
            await self._containers.hide_drive(record)
            settings = await asyncio.to_thread(lost_settings.read, place)
            await asyncio.to_thread(lost_settings.restore, settings, self._containers.pids(box_id))
            await take_back(names.netns(box_id), state.address, self._memory.address(record))
            self._check(box_id, state)
        except BaseException as error:
            await early.ended()
            await asyncio.to_thread(image_rewrite.clear, place, self._memory.root(record))
            await self._containers.release(record)
            if not (memory_image.is_marked(place) or isinstance(error, _DAMAGES)):
                raise
            await self._memory.discard(record)
            raise MemoryLost(f"the box's memory could not be restored: {error}") from error
        # The mark already prevents a second use, so this need not wait for the disk.
        await asyncio.to_thread(memory_image.forget, place, sync=False)

    async def _complete(self, record: Record) -> None:
        """Run the last steps of a resume whose service died."""
        box_id = record.plan.box_id
        try:
            _, state = await asyncio.to_thread(memory_image.read, self._memory.place(record))
            netns = self._containers.names.netns(box_id)
            await take_back(netns, state.address, self._memory.address(record))
            self._check(box_id, state)
        except BoxdError:
            await self._containers.end(box_id, 0)
            await self._containers.release(record)
        await self._memory.discard(record)

    async def _id_map(self, record: Record, state: memory_image.State) -> IdMap | None:
        """Return the id map for a restore; None for a box of an older release without one.

        A box keeps its range, unless another installation got it after a reboot.
        """
        if not state.own_users:
            return None
        box_id, place = record.plan.box_id, self._memory.place(record)
        by = await self._containers.own_id_map(record)
        if range_of(self._containers.configuration(box_id)) != by.ids:
            self._containers.configure(record, by, lxcfs=state.lxcfs)
            await asyncio.to_thread(memory_image.adopt, place, box_id, self._memory.digest(record))
        return by

    async def _connect(
        self, record: Record, state: memory_image.State, ids: IdRange, pid: int
    ) -> None:
        """Give a box whose namespaces were just created its network."""
        await self._containers.connect(record, pid)
        netns = self._containers.names.netns(record.plan.box_id)
        await set_up(netns, ids, state.address, self._memory.address(record))

    async def _restore(
        self,
        tools: dump_restore.Tools,
        record: Record,
        state: memory_image.State,
        drive: Path | None,
        by: IdMap | None,
        early: _Early,
    ) -> None:
        box_id = record.plan.box_id
        place, root = self._memory.place(record), self._memory.root(record)

        async def check(pid: int) -> None:
            await early.compare(place)  # CRIU has read them meanwhile, and no process has run
            self._containers.require_mounts_of(box_id, pid)
            self._containers.protect_host(record)

        paths = self._containers.paths(box_id)
        saved = dump_restore.Saved(
            image_rewrite.place(place),
            memory_image.mark(place),
            self._containers.names.cgroup(box_id),
            drive,
        )
        steps = Steps(
            check=check,
            connect=None if by is None else partial(self._connect, record, state, by.ids),
        )
        for attempts_left in reversed(range(RESTORES)):
            try:
                await (early.images or self._adapt(record, by))
                if drive is not None:
                    await image_rewrite.fit_drive(place, root, drive, by)
                early.compare(place)
                await dump_restore.restore(tools, box_id, paths, saved, steps=steps)
            except RestoreFailed as failure:
                await self._containers.forget(box_id)
                await early.compare(place)  # damaged pages are a better reason than CRIU's words
                if not attempts_left or not failure.repeatable:
                    raise
            else:
                return
            finally:
                early.images = None
                await asyncio.to_thread(image_rewrite.clear, place, root)

    async def _adapt(self, record: Record, by: IdMap | None) -> None:
        place, root = self._memory.place(record), self._memory.root(record)

        def work() -> None:
            image_rewrite.clear(place, root)
            image_rewrite.adapt(place, record.plan.hostname, by)

        await asyncio.to_thread(work)

    def _check(self, box_id: str, state: memory_image.State) -> None:
        """Check that the restored box has its old rights and its drive. Raises BoxdError."""
        with self._containers.init(box_id) as (pid, _):
            if processes.rights(pid) != state.rights:
                raise BoxdError("the rights of the restored box have changed")
            if has_drive(pid) != state.drive:
                raise BoxdError("the restored box does not have its drive")

    async def _require_lxcfs(self, box_id: str, state: memory_image.State) -> None:
        if state.lxcfs and not await self._containers.lxcfs.ready(box_id):
            raise Unavailable("lxcfs does not start on this host now; see the log of boxd")

    def _require_restorable(self, box_id: str) -> None:
        """Reject boxes of older releases, whose masks share a source. Raises MemoryLost."""
        if sources := mount_table.shared_sources(self._containers.configuration(box_id)):
            raise MemoryLost(
                "its memory was saved by another release of the service, and its mounts would lose"
                f" their options: {', '.join(sources)}"
            )

    async def _end_if_unsafe(self, record: Record) -> None:
        """End a box of an older release whose mounts lack options of its bundle.

        Root of a box that may run containers changes its mounts at will.
        """
        box_id = record.plan.box_id
        if record.plan.containers or not self._containers.runs(box_id):
            return
        try:
            self._containers.require_mounts(box_id)
        except BoxdError as error:
            text = "box ended; it starts again from its disk: %s"
            _log.warning(text, error, extra={"box": box_id})
            await self._containers.end(box_id, 0)
            await self._containers.release(record)


async def _uninterrupted(step: Coroutine[Any, Any, None]) -> None:
    """Run a step to its end, even if the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(step)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
