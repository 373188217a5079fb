"""Boxes of runc that stand still, go to the disk with their memory, and run on from it.

A suspension is: frozen, dumped, published, ended. Until the memory is published the box lives and
needs only to be thawed; from then on it never runs again unless that memory loses its name first.
So two facts tell what was interrupted: does the box live, and is there memory? A resumption puts a
mark into the memory before CRIU begins; who finds the mark and no box has lost it.

What was measured of CRIU, and why it is called as it is, stands in `criu_config`.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends import cgroups, checkpoint, links, memory_image, mending, mounts, processes
from boxd.backends.boxlocks import to_the_end
from boxd.backends.bundle import DRIVE_DIR
from boxd.backends.checkpoint import RestoreFailed
from boxd.backends.criu_images import DamagedImage
from boxd.backends.disk import in_thread
from boxd.backends.interface import BackendBox
from boxd.backends.netns import set_up, take_back
from boxd.errors import BoxdError, Conflict, DiskFull, MemoryLost, Unavailable, Unsupported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from boxd.backends.containers import Containers
    from boxd.backends.criu import Verdict
    from boxd.backends.records import Record

TAKE_EVERY = 0.02
"""Seconds."""
RESTORES = 2
"""How often a restore is tried that failed before any process ran."""
_DAMAGES = (DamagedImage, MemoryLost)
_CPU = ("vendor_id", "cpu family", "model", "flags")


class RuncMemory:
    """The steps for one box; the backend serialises the calls for it.

    `verdict` says whether boxes can be suspended here; None until the backend is set up.
    """

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        self.verdict: Verdict | None = None

    def look(self, record: Record) -> BackendBox:
        """What there is of a box; without its disk there is no memory of it."""
        box_id = record.plan.box_id
        running = self._containers.runs(box_id)
        frozen = running and self._containers.is_frozen(box_id)
        memory = False
        with suppress(Unavailable):
            memory = memory_image.is_there(self._place(record))
        return BackendBox(box_id, running, frozen, memory)

    async def freeze(self, record: Record) -> None:
        """Has it stand still, its link down: nobody hears of it until it runs on."""
        self._tools()
        self._require_running(record)
        cgroup = self._containers.names.cgroup(record.plan.box_id)
        await cgroups.freeze(self._containers.layout, cgroup)
        links.switch(self._containers.names, record.slot, up=False)

    async def thaw(self, record: Record) -> None:
        """Has it run on; its memory on the disk is gone for good before."""
        self._require_running(record)
        box_id = record.plan.box_id
        await self.discard(record)
        links.switch(self._containers.names, record.slot, up=True)
        cgroups.thaw(self._containers.layout, self._containers.names.cgroup(box_id))

    async def save(self, record: Record) -> None:
        """Writes the memory of a frozen box and publishes it."""
        tools = self._tools()
        self._require_running(record)
        box_id = record.plan.box_id
        if not self._containers.is_frozen(box_id):
            raise Conflict("the box is not frozen")
        if memory_image.is_there(self._place(record)):
            return
        async with self._undone_if_it_fails(record):
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
        """Writes the memory of a frozen box, but does not publish it: the box is to run on.

        Returns the complete image, which is there until `discard`. `lasting`: it is on the disk,
        and so is the box's layer.
        """
        tools = self._tools()
        async with self._undone_if_it_fails(record):
            state, pages = await self._dump(tools, record, lasting=lasting)
            images = memory_image.unpublished(self._place(record))
            facts = self._facts(record)
            await asyncio.to_thread(memory_image.seal, images, facts, state, pages)
            if lasting:
                await asyncio.to_thread(memory_image.store, images, [self._upper(record)])
        return images

    @asynccontextmanager
    async def _undone_if_it_fails(self, record: Record) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            await to_the_end(self._undo_save(record))
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull("the memory of the box has no room on the host's disk") from error
            raise

    async def discard(self, record: Record) -> None:
        """Removes its memory, also from the disk's point of view. No error if it has none."""
        await asyncio.to_thread(_discard, self._place(record))

    async def tidy(self, record: Record) -> None:
        """Removes what is left of memory that was used or not completed."""
        await asyncio.to_thread(memory_image.drop_rests, self._place(record))

    async def resume(self, record: Record, drive: Path | None) -> None:
        """Has a stopped box run on. Before the mark is made an error leaves its memory as it is.

        A cancellation does not cut it short: memory is used once. What it was is removed by `tidy`.
        """
        box_id = record.plan.box_id
        if self._containers.runs(box_id):
            return
        tools = self._tools()
        try:
            state = await asyncio.to_thread(
                memory_image.check, self._place(record), self._facts(record)
            )
        except MemoryLost:
            await self.discard(record)
            raise
        if not state.drive:
            drive = None
        elif drive is None:
            raise Unavailable("the box had its drive; it can only run on with it")
        elif mounts.device_at(Path("/proc/self/mountinfo"), str(drive)) is None:
            raise Unavailable("the drive is not mounted on this host")
        await _whole(self._resume(tools, record, state, drive))

    async def settle(self, record: Record) -> None:
        """Puts right what a service that died has left of a box.

        Waits for whoever dumps or restores it, for a bounded time.
        """
        box_id = record.plan.box_id
        async with checkpoint.alone_with(self._containers.paths(box_id)):
            pass
        try:
            place = self._place(record)
        except Unavailable:
            return  # its disk is not there
        await asyncio.to_thread(mending.clear, place, self._root(record))
        if not self._containers.runs(box_id):
            await self._containers.forget(box_id)  # what is there is half a box
            await asyncio.to_thread(memory_image.drop_rests, place)
            return
        if memory_image.is_marked(place):
            await self._complete(record)
        if not self._containers.is_frozen(box_id):
            await self.discard(record)  # it has run since
            links.switch(self._containers.names, record.slot, up=True)
        await asyncio.to_thread(memory_image.drop_rests, place)

    async def before_end(self, record: Record) -> None:
        """What a box that runs has on the disk is not its memory any more when it has ended."""
        box_id = record.plan.box_id
        if self._containers.runs(box_id) and not self._containers.is_frozen(box_id):
            await self.discard(record)

    # Steps.

    async def _dump(
        self, tools: checkpoint.Tools, record: Record, *, lasting: bool
    ) -> tuple[memory_image.State, memory_image.Pages]:
        box_id = record.plan.box_id
        paths, place = self._containers.paths(box_id), self._place(record)
        used = cgroups.usage(self._containers.layout, self._containers.names.cgroup(box_id))
        self._containers.disk(record).require_memory(paths, used.memory_bytes)
        with self._containers.init(box_id) as (pid, _):
            state = memory_image.State(
                drive=_drive_in(pid),
                address=self._address(record),
                runtime=str(record.plan.runtime),
                rights=processes.rights(pid),
            )
        images = await asyncio.to_thread(memory_image.new, place)
        pages = memory_image.Pages(images, lasting=lasting)
        async with _taking_meanwhile(pages):
            await checkpoint.dump(tools, box_id, paths, images, drive=state.drive)
        await asyncio.to_thread(mending.verify, images)
        return state, pages

    async def _undo_save(self, record: Record) -> None:
        """CRIU may have let it go on in its last moment."""
        box_id = record.plan.box_id
        if self._containers.runs(box_id):
            cgroup = self._containers.names.cgroup(box_id)
            await cgroups.freeze(self._containers.layout, cgroup)
        await self.discard(record)

    async def _resume(
        self,
        tools: checkpoint.Tools,
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
            await self._containers.prepare(record)
            await set_up(names.netns(box_id), state.address, self._address(record))
            mended = await self._mend(record, drive)
            await pages
            await self._restore(tools, record, mended, drive)
            await take_back(names.netns(box_id), state.address, self._address(record))
            self._check(box_id, state)
        except BaseException as error:
            await asyncio.gather(pages, return_exceptions=True)
            await self._containers.release(record)
            if not (memory_image.is_marked(place) or isinstance(error, _DAMAGES)):
                raise
            await self.discard(record)
            raise MemoryLost(f"the box's memory could not be brought back: {error}") from error
        await asyncio.to_thread(memory_image.forget, place, sync=False)  # the mark is enough

    async def _complete(self, record: Record) -> None:
        """The last steps of a resumption whose service died."""
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
        tools: checkpoint.Tools,
        record: Record,
        mended: mending.Mended,
        drive: Path | None,
    ) -> None:
        box_id = record.plan.box_id
        paths = self._containers.paths(box_id)
        mark = memory_image.mark(self._place(record))
        for left in reversed(range(RESTORES)):
            try:
                await checkpoint.restore(tools, box_id, paths, mended.images, mark, drive=drive)
            except RestoreFailed as failure:
                await self._containers.forget(box_id)
                if not left or not failure.repeatable:
                    raise
            else:
                return
            finally:
                await asyncio.to_thread(mended.clear)
            mended = await self._mend(record, drive)

    async def _mend(self, record: Record, drive: Path | None) -> mending.Mended:
        box_id = record.plan.box_id
        paths = self._containers.paths(box_id)
        return await mending.mend(
            self._place(record), root=paths.root, drive=drive, hostname=record.plan.hostname
        )

    def _check(self, box_id: str, state: memory_image.State) -> None:
        """Whether the box that came back is bound as it was."""
        with self._containers.init(box_id) as (pid, _):
            if processes.rights(pid) != state.rights:
                raise BoxdError("it came back with other rights")
            if _drive_in(pid) != state.drive:
                raise BoxdError("it came back without its drive")

    # Helpers.

    def _tools(self) -> checkpoint.Tools:
        """Raises Unsupported where boxes cannot be suspended."""
        if self.verdict is None or self.verdict.program is None or not self.verdict.suspends:
            raise Unsupported(self.why_not)
        names = self._containers.names
        return checkpoint.Tools(self.verdict.program.path, names.runc_root)

    @property
    def why_not(self) -> str:
        """Why boxes cannot be suspended here; empty where they can."""
        if self.verdict is None:
            return "boxes cannot suspend: the backend is not set up"
        return "" if self.verdict.suspends else self.verdict.text

    def _require_running(self, record: Record) -> None:
        if not self._containers.runs(record.plan.box_id):
            raise Conflict("the box does not run")

    def _address(self, record: Record) -> str:
        return str(self._containers.network.address(record.slot).box)

    def _place(self, record: Record) -> Path:
        paths = self._containers.paths(record.plan.box_id)
        return self._containers.disk(record).memory_dir(paths)

    def _upper(self, record: Record) -> Path:
        paths = self._containers.paths(record.plan.box_id)
        return self._containers.disk(record).upper(paths)

    def _root(self, record: Record) -> Path:
        """Where the root of the box can be changed: mounted or not."""
        paths = self._containers.paths(record.plan.box_id)
        if mounts.is_mounted(paths.root):
            return paths.root
        return self._upper(record)

    def digest(self, record: Record) -> str:
        """Of the box's configuration."""
        bundle = self._containers.paths(record.plan.box_id).bundle
        return hashlib.sha256((bundle / "config.json").read_bytes()).hexdigest()

    def _facts(self, record: Record) -> memory_image.Facts:
        tools = self.verdict.tools if self.verdict is not None else ""
        return memory_image.Facts(
            box_id=record.plan.box_id, bundle=self.digest(record), host=f"{tools} {_cpu()}"
        )


@asynccontextmanager
async def _taking_meanwhile(pages: memory_image.Pages) -> AsyncIterator[None]:
    """Pages are summed, and the disk takes them, while they are written: what is left to do in the
    end is short then."""

    async def take() -> None:
        while True:
            await asyncio.sleep(TAKE_EVERY)
            with suppress(OSError):  # who waits for the disk is told
                await in_thread(pages.take)

    task = asyncio.ensure_future(take())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _whole(step: Coroutine[Any, Any, None]) -> None:
    """Does a step to its end, also when it is cancelled meanwhile."""
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
    """The CPU as far as processes can tell: its model, and what it can do."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    fields = dict(line.split("\t: ", 1) for line in first.splitlines() if "\t: " in line)
    found = [fields.get(name) or fields.get(f"{name}\t", "") for name in _CPU]
    return "cpu " + hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
