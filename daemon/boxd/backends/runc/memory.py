"""Freezes and suspends boxes of runc, and resumes them with their memory.

A suspension has four steps: freeze, dump, publish, end. Until the memory is published, the box is
alive and needs only a thaw. After that it must not run again unless the published memory is
discarded first. So two facts show which step was interrupted: is the box alive, and is there
memory? A restore creates a mark in the memory before any process of the box runs. If the memory has
the mark and the box is not alive, the memory is lost.

`criu_config` has the measurements of CRIU and the reasons for its options.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.checkpoint import (
    dump_restore,
    image_rewrite,
    inotify_events,
    lost_settings,
    memory_image,
    netlink_events,
    obstacles,
)
from boxd.backends.checkpoint.criu_images import DamagedImage
from boxd.backends.checkpoint.dump_restore import RestoreFailed, RestoreRefused
from boxd.backends.checkpoint.netns import set_up, take_back
from boxd.backends.disks import image_size
from boxd.backends.disks.disk import in_thread
from boxd.backends.host import cgroups, mounts, processes
from boxd.backends.interface import BackendBox
from boxd.backends.network import links
from boxd.backends.oci import mount_table
from boxd.backends.oci.bundle import DRIVE_DIR
from boxd.cancellation import to_the_end
from boxd.errors import BoxdError, Conflict, DiskFull, MemoryLost, Unavailable, Unsupported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from boxd.backends.checkpoint.criu import Verdict
    from boxd.backends.records import Record
    from boxd.backends.runc.containers import Containers

TAKE_EVERY = 0.02
"""Seconds between two passes over the pages that CRIU has written."""
RESTORES = 2
"""Attempts at a restore that fails before any process runs."""
_log = logging.getLogger(__name__)
_DAMAGES = (DamagedImage, MemoryLost, RestoreRefused)
_CPU = ("vendor_id", "cpu family", "model", "flags")


class RuncMemory:
    """The steps for one box. The backend serialises the calls for each box.

    `verdict` says whether boxes can be suspended here. It is None until the backend is set up.
    """

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        self.verdict: Verdict | None = None
        self._notifications = inotify_events.Notifications()
        self._unread: dict[str, frozenset[int]] = {}
        """Netlink sockets of each frozen box that had unread messages before its link went down."""

    def look(self, record: Record) -> BackendBox:
        """Return the state of a box. Without its disk, it has no memory."""
        box_id = record.plan.box_id
        running = self._containers.runs(box_id)
        frozen = running and self._containers.is_frozen(box_id)
        memory = False
        with suppress(Unavailable):
            memory = memory_image.is_there(self._place(record))
        return BackendBox(box_id, running, frozen, memory)

    async def freeze(self, record: Record) -> None:
        """Freeze the box and take down its link, so that nothing reaches it until it is thawed."""
        self._tools()
        self._require_running(record)
        cgroup = self._containers.names.cgroup(record.plan.box_id)
        await cgroups.freeze(self._containers.layout, cgroup)
        box_id = record.plan.box_id
        self._unread[box_id] = await asyncio.to_thread(netlink_events.unread, self._pids(box_id))
        links.switch(self._containers.names, record.slot, up=False)

    async def thaw(self, record: Record) -> None:
        """Discard the box's memory on the disk durably, and then thaw the box."""
        self._require_running(record)
        box_id = record.plan.box_id
        await self.discard(record)
        self._unread.pop(box_id, None)
        links.switch(self._containers.names, record.slot, up=True)
        cgroups.thaw(self._containers.layout, self._containers.names.cgroup(box_id))

    async def save(self, record: Record) -> None:
        """Write the memory of a frozen box and publish it."""
        tools = self._tools()
        self._require_running(record)
        box_id = record.plan.box_id
        if not self._containers.is_frozen(box_id):
            raise Conflict("the box is not frozen")
        if memory_image.is_there(self._place(record)):
            return
        async with self._undo_on_failure(record):
            state, pages = await self._dump(tools, record, lasting=True)
            await asyncio.to_thread(
                memory_image.publish,
                self._place(record),
                self._facts(record),
                state,
                pages=pages,
                beside=[self._upper(record)],
            )

    async def save_aside(self, record: Record, *, lasting: bool) -> Path:
        """Write the memory of a frozen box without publishing it, because the box will continue.

        Returns the complete image, which exists until `discard`. With `lasting`, the image and the
        box's layer are on the disk when this returns.
        """
        tools = self._tools()
        async with self._undo_on_failure(record):
            state, pages = await self._dump(tools, record, lasting=lasting)
            images = memory_image.unpublished(self._place(record))
            facts = self._facts(record)
            await asyncio.to_thread(memory_image.seal, images, facts, state, pages)
            if lasting:
                await asyncio.to_thread(memory_image.store, images, [self._upper(record)])
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

    async def discard(self, record: Record) -> None:
        """Remove the box's memory durably. No error if there is none."""
        await asyncio.to_thread(_discard, self._place(record))

    async def tidy(self, record: Record) -> None:
        """Remove the remains of a memory image that was used or is incomplete."""
        await asyncio.to_thread(memory_image.drop_rests, self._place(record))

    async def resume(self, record: Record, drive: Path | None) -> None:
        """Resume a stopped box. An error before the mark exists leaves its memory unchanged.

        A cancellation does not interrupt it, because memory can be used only once. `tidy` removes
        the used memory.
        """
        box_id = record.plan.box_id
        if self._containers.runs(box_id):
            return
        tools = self._tools()
        try:
            state = await asyncio.to_thread(
                memory_image.check, self._place(record), self._facts(record)
            )
            self._require_restorable(box_id)
        except MemoryLost:
            await self.discard(record)
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
        await _uninterrupted(self._resume(tools, record, state, drive))

    async def settle(self, record: Record) -> None:
        """Complete or undo a suspension or resume that a dead service has interrupted.

        Waits for a running dump or restore of the box, for a bounded time.
        """
        box_id = record.plan.box_id
        async with dump_restore.alone_with(self._containers.paths(box_id)):
            pass
        try:
            place = self._place(record)
        except Unavailable:
            return  # the box's disk is not available
        await asyncio.to_thread(image_rewrite.clear, place, self._root(record))
        if not self._containers.runs(box_id):
            await self._containers.forget(box_id)  # removes the remains of an incomplete box
            await asyncio.to_thread(memory_image.drop_rests, place)
            return
        if memory_image.is_marked(place):
            await self._complete(record)
        if not self._containers.is_frozen(box_id):
            await self.discard(record)  # stale: the box has run since then
            links.switch(self._containers.names, record.slot, up=True)
        await asyncio.to_thread(memory_image.drop_rests, place)
        await self._end_if_unsafe(record)

    async def before_end(self, record: Record) -> None:
        """Discard the memory of a box that runs; it is stale once the box has ended."""
        box_id = record.plan.box_id
        if self._containers.runs(box_id) and not self._containers.is_frozen(box_id):
            await self.discard(record)

    # Steps.

    async def _dump(
        self, tools: dump_restore.Tools, record: Record, *, lasting: bool
    ) -> tuple[memory_image.State, memory_image.Pages]:
        box_id = record.plan.box_id
        paths, place = self._containers.paths(box_id), self._place(record)
        await self._refuse_obstacles(box_id)
        disk = self._containers.disk(record)
        disk.require_memory(paths, await self._image_size(box_id))
        with self._containers.init(box_id) as (pid, _):
            state = memory_image.State(
                drive=_drive_in(pid),
                address=self._address(record),
                runtime=str(record.plan.runtime),
                rights=processes.rights(pid),
                lxcfs=self._containers.has_lxcfs(box_id),
            )
        images = await asyncio.to_thread(memory_image.new, place)
        pages = memory_image.Pages(images, lasting=lasting)
        await _watched(
            dump_restore.dump(tools, box_id, paths, images, drive=state.drive),
            _take(pages, lambda: disk.require_room(paths)),
        )
        await asyncio.to_thread(image_rewrite.verify, images)
        settings = await asyncio.to_thread(lost_settings.collect, self._pids(box_id))
        await asyncio.to_thread(lost_settings.write, images, settings)
        return state, pages

    def _pids(self, box_id: str) -> list[int]:
        return cgroups.pids_of(self._containers.layout, self._containers.names.cgroup(box_id))

    async def _image_size(self, box_id: str) -> image_size.ImageSize:
        """Estimate the size of the frozen box's image on the disk."""
        layout, cgroup = self._containers.layout, self._containers.names.cgroup(box_id)
        memory = cgroups.usage(layout, cgroup).memory_bytes
        return await asyncio.to_thread(image_size.estimate, self._pids(box_id), memory)

    async def _refuse_obstacles(self, box_id: str) -> None:
        """Raise Conflict if the frozen box has something that a suspension would lose."""
        pids = self._pids(box_id)
        obstacle = await asyncio.to_thread(obstacles.find, pids)
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

    async def _undo_save(self, record: Record) -> None:
        """Discard the memory, and freeze the box again: CRIU may have unfrozen it at the end."""
        box_id = record.plan.box_id
        if self._containers.runs(box_id):
            cgroup = self._containers.names.cgroup(box_id)
            await cgroups.freeze(self._containers.layout, cgroup)
        await self.discard(record)

    async def _resume(
        self,
        tools: dump_restore.Tools,
        record: Record,
        state: memory_image.State,
        drive: Path | None,
    ) -> None:
        box_id = record.plan.box_id
        place = self._place(record)
        names = self._containers.names
        pages = asyncio.create_task(asyncio.to_thread(memory_image.check_pages, place))
        try:
            await self._containers.forget(box_id)
            await self._containers.prepare(record, lxcfs=state.lxcfs)
            await set_up(names.netns(box_id), state.address, self._address(record))
            mended = await self._mend(record, drive)
            await pages
            await self._require_lxcfs(box_id, state)
            await self._restore(tools, record, mended, drive)
            settings = await asyncio.to_thread(lost_settings.read, place)
            await asyncio.to_thread(lost_settings.restore, settings, self._pids(box_id))
            await take_back(names.netns(box_id), state.address, self._address(record))
            self._check(box_id, state)
        except BaseException as error:
            await asyncio.gather(pages, return_exceptions=True)
            await self._containers.release(record)
            if not (memory_image.is_marked(place) or isinstance(error, _DAMAGES)):
                raise
            await self.discard(record)
            raise MemoryLost(f"the box's memory could not be restored: {error}") from error
        # The mark already prevents a second use, so this need not wait for the disk.
        await asyncio.to_thread(memory_image.forget, place, sync=False)

    async def _complete(self, record: Record) -> None:
        """Run the last steps of a resume whose service died."""
        box_id = record.plan.box_id
        try:
            _, state = await asyncio.to_thread(memory_image.read, self._place(record))
            netns = self._containers.names.netns(box_id)
            await take_back(netns, state.address, self._address(record))
            self._check(box_id, state)
        except BoxdError:
            await self._containers.end(box_id, 0)
            await self._containers.release(record)
        await self.discard(record)

    async def _restore(
        self,
        tools: dump_restore.Tools,
        record: Record,
        mended: image_rewrite.Mended,
        drive: Path | None,
    ) -> None:
        box_id = record.plan.box_id
        paths = self._containers.paths(box_id)
        mark = memory_image.mark(self._place(record))
        check = partial(self._containers.require_mounts_of, box_id)
        for attempts_left in reversed(range(RESTORES)):
            try:
                await dump_restore.restore(
                    tools, box_id, paths, mended.images, mark, drive=drive, check=check
                )
            except RestoreFailed as failure:
                await self._containers.forget(box_id)
                if not attempts_left or not failure.repeatable:
                    raise
            else:
                return
            finally:
                await asyncio.to_thread(mended.clear)
            mended = await self._mend(record, drive)

    async def _mend(self, record: Record, drive: Path | None) -> image_rewrite.Mended:
        box_id = record.plan.box_id
        paths = self._containers.paths(box_id)
        return await image_rewrite.mend(
            self._place(record), root=paths.root, drive=drive, hostname=record.plan.hostname
        )

    def _check(self, box_id: str, state: memory_image.State) -> None:
        """Check that the restored box has its old rights and its drive. Raises BoxdError."""
        with self._containers.init(box_id) as (pid, _):
            if processes.rights(pid) != state.rights:
                raise BoxdError("the rights of the restored box have changed")
            if _drive_in(pid) != state.drive:
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
        """End a box of an older release whose mounts lack options of its bundle."""
        box_id = record.plan.box_id
        if not self._containers.runs(box_id):
            return
        try:
            self._containers.require_mounts(box_id)
        except BoxdError as error:
            text = "box ended; it starts again from its disk: %s"
            _log.warning(text, error, extra={"box": box_id})
            await self._containers.end(box_id, 0)
            await self._containers.release(record)

    # Helpers.

    def _tools(self) -> dump_restore.Tools:
        """Return the tools for dumps and restores.

        Raises Unsupported if boxes cannot be suspended.
        """
        if self.verdict is None or self.verdict.program is None or not self.verdict.suspends:
            raise Unsupported(self.why_not)
        names = self._containers.names
        own = tuple(cgroups.own_files(self._containers.layout))
        return dump_restore.Tools(self.verdict.program.path, names.runc_root, names.masks, own)

    @property
    def why_not(self) -> str:
        """Why boxes cannot be suspended here, or "" if they can."""
        if self.verdict is None:
            return "boxes cannot suspend: the backend is not set up"
        return "" if self.verdict.suspends else self.verdict.text

    def _require_running(self, record: Record) -> None:
        if not self._containers.runs(record.plan.box_id):
            raise Conflict("the box is not running")

    def _address(self, record: Record) -> str:
        return str(self._containers.network.address(record.slot).box)

    def _place(self, record: Record) -> Path:
        paths = self._containers.paths(record.plan.box_id)
        return self._containers.disk(record).memory_dir(paths)

    def _upper(self, record: Record) -> Path:
        paths = self._containers.paths(record.plan.box_id)
        return self._containers.disk(record).upper(paths)

    def _root(self, record: Record) -> Path:
        """Return the directory where the box's root can be changed, mounted or not."""
        paths = self._containers.paths(record.plan.box_id)
        if mounts.is_mounted(paths.root):
            return paths.root
        return self._upper(record)

    def digest(self, record: Record) -> str:
        """Return the digest of the box's configuration."""
        bundle = self._containers.paths(record.plan.box_id).bundle
        return hashlib.sha256((bundle / "config.json").read_bytes()).hexdigest()

    def _facts(self, record: Record) -> memory_image.Facts:
        tools = self.verdict.tools if self.verdict is not None else ""
        return memory_image.Facts(
            box_id=record.plan.box_id, bundle=self.digest(record), host=f"{tools} {_cpu()}"
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


def _discard(place: Path, *, sync: bool = True) -> None:
    memory_image.forget(place, sync=sync)
    memory_image.drop_rests(place)


def _drive_in(pid: int) -> bool:
    return mounts.device_at(Path(f"/proc/{pid}/mountinfo"), DRIVE_DIR) is not None


def _cpu() -> str:
    """Return a digest of the CPU as processes see it: its model and its features."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    fields = dict(line.split("\t: ", 1) for line in first.splitlines() if "\t: " in line)
    values = [fields.get(name) or fields.get(f"{name}\t", "") for name in _CPU]
    return "cpu " + hashlib.sha256("\n".join(values).encode()).hexdigest()[:16]
