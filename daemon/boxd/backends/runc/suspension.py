"""Freezes boxes of runc, and saves their memory.

`memory` describes the steps of a suspension. `criu_config` has the measurements of CRIU and the
reasons for its options.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from boxd.backends.checkpoint import (
    dump_restore,
    image_rewrite,
    inotify_events,
    lost_settings,
    memory_image,
    netlink_events,
    obstacles,
    passing,
)
from boxd.backends.disks import image_size
from boxd.backends.disks.disk import in_thread
from boxd.backends.host import cgroups, id_maps, processes
from boxd.backends.network import links
from boxd.backends.runc.memory import has_drive
from boxd.cancellation import to_the_end
from boxd.errors import Conflict, DiskFull

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from boxd.backends.records import Record
    from boxd.backends.runc.containers import Containers
    from boxd.backends.runc.memory import RuncMemory

TAKE_EVERY = 0.02
"""Seconds between two passes over the pages that CRIU has written."""


class RuncSuspension:
    """The steps for one box. The backend serialises the calls for each box."""

    def __init__(self, containers: Containers, memory: RuncMemory) -> None:
        self._containers = containers
        self._memory = memory
        self._notifications = inotify_events.Notifications()
        self._unread: dict[str, frozenset[int]] = {}
        """Netlink sockets of each frozen box that had unread messages before its link went down."""

    async def freeze(self, record: Record) -> None:
        """Freeze the box and take down its link, so that nothing reaches it until it is thawed."""
        self._memory.tools()
        self._memory.require_running(record)
        cgroup = self._containers.names.cgroup(record.plan.box_id)
        await cgroups.freeze(self._containers.layout, cgroup)
        box_id = record.plan.box_id
        self._unread[box_id] = await asyncio.to_thread(
            netlink_events.unread, self._containers.pids(box_id)
        )
        links.switch(self._containers.names, record.slot, up=False)

    async def thaw(self, record: Record) -> None:
        """Discard the box's memory on the disk durably, and then thaw the box."""
        self._memory.require_running(record)
        box_id = record.plan.box_id
        await self._memory.discard(record)
        self._unread.pop(box_id, None)
        links.switch(self._containers.names, record.slot, up=True)
        cgroups.thaw(self._containers.layout, self._containers.names.cgroup(box_id))

    async def save(self, record: Record) -> None:
        """Write the memory of a frozen box and publish it."""
        tools = self._memory.tools()
        self._memory.require_running(record)
        box_id = record.plan.box_id
        if not self._containers.is_frozen(box_id):
            raise Conflict("the box is not frozen")
        if memory_image.is_there(self._memory.place(record)):
            return
        async with self._undo_on_failure(record):
            state, pages = await self._dump(tools, record, lasting=True)
            await asyncio.to_thread(
                memory_image.publish,
                self._memory.place(record),
                self._memory.facts(record),
                state,
                pages=pages,
                beside=[self._memory.upper(record)],
            )

    async def save_aside(self, record: Record, *, lasting: bool) -> Path:
        """Write the memory of a frozen box without publishing it, because the box will continue.

        Returns the complete image, which exists until `discard`. With `lasting`, the image and the
        box's layer are on the disk when this returns.
        """
        tools = self._memory.tools()
        async with self._undo_on_failure(record):
            state, pages = await self._dump(tools, record, lasting=lasting)
            images = memory_image.unpublished(self._memory.place(record))
            facts = self._memory.facts(record)
            await asyncio.to_thread(memory_image.seal, images, facts, state, pages)
            if lasting:
                await asyncio.to_thread(memory_image.store, images, [self._memory.upper(record)])
        return images

    @asynccontextmanager
    async def _undo_on_failure(self, record: Record) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            await to_the_end(self._undo_save(record))
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull("the host's disk has no room for the memory of the box") from error
            raise

    async def _undo_save(self, record: Record) -> None:
        """Discard the memory, and freeze the box again: CRIU may have unfrozen it at the end."""
        box_id = record.plan.box_id
        if self._containers.runs(box_id):
            cgroup = self._containers.names.cgroup(box_id)
            await cgroups.freeze(self._containers.layout, cgroup)
        await self._memory.discard(record)

    # Steps.

    async def _dump(
        self, tools: dump_restore.Tools, record: Record, *, lasting: bool
    ) -> tuple[memory_image.State, memory_image.Pages]:
        box_id = record.plan.box_id
        paths, place = self._containers.paths(box_id), self._memory.place(record)
        await self._refuse_obstacles(box_id)
        disk = self._containers.disk(record)
        disk.require_memory(paths, await self._image_size(box_id))
        with self._containers.init(box_id) as (pid, _):
            state = memory_image.State(
                drive=has_drive(pid),
                address=self._memory.address(record),
                runtime=str(record.plan.runtime),
                rights=processes.rights(pid),
                lxcfs=self._containers.has_lxcfs(box_id),
                own_users=id_maps.of_process(pid) is not None,
            )
        images = await asyncio.to_thread(memory_image.new, place)
        pages = memory_image.Pages(images, lasting=lasting)
        await _watched(
            dump_restore.dump(
                tools, box_id, paths, images, drive=state.drive, own_users=state.own_users
            ),
            _take(pages, lambda: disk.require_room(paths)),
        )
        await asyncio.to_thread(image_rewrite.verify, images)
        settings = await asyncio.to_thread(lost_settings.collect, self._containers.pids(box_id))
        await asyncio.to_thread(lost_settings.write, images, settings)
        return state, pages

    async def _image_size(self, box_id: str) -> image_size.ImageSize:
        """Estimate the size of the frozen box's image on the disk."""
        layout, cgroup = self._containers.layout, self._containers.names.cgroup(box_id)
        memory = cgroups.usage(layout, cgroup).memory_bytes
        return await asyncio.to_thread(image_size.estimate, self._containers.pids(box_id), memory)

    async def _refuse_obstacles(self, box_id: str) -> None:
        """Raise Conflict if the frozen box has something that a suspension would lose."""
        cgroup = self._containers.names.cgroup(box_id)
        connection = await passing.let_pass(self._containers.layout, cgroup)
        pids = self._containers.pids(box_id)
        obstacle = await asyncio.to_thread(obstacles.find, pids) or connection
        if obstacle:
            raise Conflict(obstacle)
        if (before := self._unread.pop(box_id, None)) is not None:
            await asyncio.to_thread(netlink_events.take_away, pids, before)
        sizes = await asyncio.to_thread(inotify_events.unread, pids)
        if key := self._notifications.waiting(box_id, sizes):
            raise Conflict(
                f"{obstacles.name(key[0])} has not read its file notifications yet. Wait, or stop "
                "it; the box stays awake"
            )


async def _take(pages: memory_image.Pages, require_room: Callable[[], None]) -> None:
    """Checksum the pages, and start writing them to the disk, while CRIU writes them.

    This shortens the work after the dump. Ends only when `require_room` raises DiskFull.
    """
    while True:
        await asyncio.sleep(TAKE_EVERY)
        require_room()
        with suppress(OSError):  # the end of the dump reports it
            await in_thread(pages.take)


async def _watched(work: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end. If `watch` raises first, `work` is cancelled."""
    tasks = [asyncio.ensure_future(watch), asyncio.ensure_future(work)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await to_the_end(_ended(tasks))
    for task in tasks:
        if not task.cancelled():
            task.result()


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
