"""What boxes use, measured again and again, so that `ls` asks nobody.

All boxes of the backend are measured in turns: running ones each `PERIOD`, others once after they
stopped, for their disk. To measure a disk may mean to walk it, so a box whose measurement took long
is left alone for `REST` times as long. A box that cannot be measured keeps its last figures and
delays no other one (as long as fewer than `PARALLEL` hang).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.boxes.loops import watched
from boxd.errors import BoxdError, NotFound
from boxd.model.usage import Usage

if TYPE_CHECKING:
    from boxd.backends.interface import Backend, BackendBox, BoxStats
    from boxd.clock import Clock

PERIOD = 10.0
"""Seconds between two measurements of a running box."""
PARALLEL = 4
"""Boxes that are measured at the same time."""
REST = 20
"""A box is measured for at most one part in so many of the time."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sample:
    """`taken` and `due` are on the monotonic clock; `running`: the box ran meanwhile."""

    usage: Usage
    taken: float
    due: float
    running: bool


class UsageSampler:
    """See the module.

    Critical section: none across an await; what a later measurement found is never replaced by an
    earlier one's, as `_samples` is written with the time at which the measurement began.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._samples: dict[str, _Sample] = {}
        self._told: set[str] = set()
        self._slots = asyncio.Semaphore(PARALLEL)
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None

    def last(self, box_id: str) -> Usage | None:
        """What was measured last; None: nothing yet."""
        sample = self._samples.get(box_id)
        return None if sample is None else sample.usage

    async def refresh(self, box_id: str) -> None:
        """Measures one box now. What fails leaves the last figures."""
        await self._measure(box_id, running=True)

    def start(self) -> None:
        """Begins to measure."""
        self._loop = watched(asyncio.create_task(self._run(), name="usage of boxes"))

    async def close(self) -> None:
        """Ends it."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None
        busy = list(self._busy.values())
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            try:
                boxes = await self._backend.list()
            except (BoxdError, OSError) as error:
                self._tell("", f"use of resources not measured: {error}")
                continue
            except Exception:
                self._tell_bug("")
                continue
            self._told.discard("")
            self._forget_others({box.box_id for box in boxes})
            for box in boxes:
                if box.box_id not in self._busy and self._is_due(box):
                    self._begin(box)

    def _begin(self, box: BackendBox) -> None:
        """In a task of its own, so that the next round comes even if this one hangs."""
        work = self._measure(box.box_id, running=box.running)
        task = asyncio.create_task(work, name=f"usage of box {box.box_id}")
        self._busy[box.box_id] = task
        task.add_done_callback(lambda _: self._busy.pop(box.box_id))

    def _is_due(self, box: BackendBox) -> bool:
        sample = self._samples.get(box.box_id)
        if sample is None or sample.running != box.running:
            return True
        return box.running and self._clock.monotonic() >= sample.due

    def _forget_others(self, present: set[str]) -> None:
        for box_id in self._samples.keys() - present:
            del self._samples[box_id]
        self._told &= present

    async def _measure(self, box_id: str, *, running: bool) -> None:
        async with self._slots:
            began = self._clock.monotonic()
            try:
                stats = await self._backend.stats(box_id)
            except NotFound:
                return  # it was removed meanwhile; the next round forgets it
            except (BoxdError, OSError) as error:
                self._tell(box_id, f"use of resources not measured: {error}")
                return
            except Exception:
                self._tell_bug(box_id)
                return
            self._told.discard(box_id)
            before = self._samples.get(box_id)
            if before is None or before.taken < began:
                took = self._clock.monotonic() - began
                usage = self._usage(stats, began, before)
                self._samples[box_id] = _Sample(usage, began, began + REST * took, running)

    def _usage(self, stats: BoxStats, began: float, before: _Sample | None) -> Usage:
        share = None
        if before is not None and stats.cpu_s >= before.usage.cpu_s:
            share = (stats.cpu_s - before.usage.cpu_s) / (began - before.taken)
        return Usage(
            at=self._clock.now(),
            cpu_s=stats.cpu_s,
            cpu_share=share,
            memory_bytes=stats.memory_bytes,
            disk_bytes=stats.disk_bytes,
            pids=stats.pids,
            net_rx_bytes=stats.net_rx_bytes,
            net_tx_bytes=stats.net_tx_bytes,
        )

    def _tell_bug(self, box_id: str) -> None:
        """Logs, once, what is being handled: a bug with one box must not keep the others."""
        if box_id not in self._told:
            _log.exception("use of resources not measured", extra={"box": box_id})
        self._told.add(box_id)

    def _tell(self, box_id: str, text: str) -> None:
        """Once, until it works again."""
        if box_id not in self._told:
            _log.warning(text, extra={"box": box_id})
        self._told.add(box_id)
