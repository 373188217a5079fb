"""Resource usage of boxes, measured in the background so that `ls` does not wait.

The sampler measures running boxes every PERIOD seconds. It measures other boxes once after they
stop, for their disk usage. Measuring a disk may require a walk through all files. So after a slow
measurement, the sampler skips the box for REST times as long. A box that cannot be measured keeps
its last figures and delays no other box, unless PARALLEL boxes hang.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import BoxdError, NotFound
from boxd.model.usage import Usage
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from boxd.backends.interface import Backend, BackendBox, BoxStats
    from boxd.clock import Clock

PERIOD = 10.0
"""Seconds between two measurements of a running box."""
PARALLEL = 4
"""Number of boxes to measure at the same time."""
REST = 20
"""A box is measured for at most 1/REST of the time."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sample:
    """`at` and `due` are monotonic seconds. `running`: the box ran during the measurement."""

    usage: Usage
    at: float
    due: float
    running: bool


class UsageSampler:
    """Measures boxes and stores their last figures.

    Critical section: none across an await. `_samples` stores when a measurement began, so an
    earlier one never replaces a later one.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._samples: dict[str, _Sample] = {}
        self._logged: set[str] = set()
        self._slots = asyncio.Semaphore(PARALLEL)
        self._busy: set[str] = set()
        self._tasks = BackgroundTasks()

    def last(self, box_id: str) -> Usage | None:
        """Return the last measurement, or None."""
        sample = self._samples.get(box_id)
        return None if sample is None else sample.usage

    async def refresh(self, box_id: str) -> None:
        """Measure one box now. A failure keeps the last figures."""
        await self._measure(box_id, running=True)

    def start(self) -> None:
        """Start measuring."""
        self._tasks.start(self._run(), name="usage of boxes")

    async def close(self) -> None:
        """Stop measuring."""
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            try:
                boxes = await self._backend.list()
            except (BoxdError, OSError) as error:
                self._log_failure("", f"cannot measure the use of resources: {error}")
                continue
            except Exception:
                self._log_bug("")
                continue
            self._logged.discard("")
            self._forget_others({box.box_id for box in boxes})
            for box in boxes:
                if box.box_id not in self._busy and self._is_due(box):
                    self._begin(box)

    def _begin(self, box: BackendBox) -> None:
        """Measure a box in its own task, so that a box that hangs does not delay the next round."""
        work = self._measure(box.box_id, running=box.running)
        task = self._tasks.start(work, name=f"usage of box {box.box_id}")
        self._busy.add(box.box_id)
        task.add_done_callback(lambda _: self._busy.discard(box.box_id))

    def _is_due(self, box: BackendBox) -> bool:
        sample = self._samples.get(box.box_id)
        if sample is None or sample.running != box.running:
            return True
        return box.running and self._clock.monotonic() >= sample.due

    def _forget_others(self, present: set[str]) -> None:
        for box_id in self._samples.keys() - present:
            del self._samples[box_id]
        self._logged &= present

    async def _measure(self, box_id: str, *, running: bool) -> None:
        async with self._slots:
            began = self._clock.monotonic()
            try:
                stats = await self._backend.stats(box_id)
            except NotFound:
                return  # the box has been removed; the next round forgets it
            except (BoxdError, OSError) as error:
                self._log_failure(box_id, f"cannot measure the use of resources: {error}")
                return
            except Exception:
                self._log_bug(box_id)
                return
            self._logged.discard(box_id)
            before = self._samples.get(box_id)
            if before is None or before.at < began:
                took = self._clock.monotonic() - began
                usage = self._usage(stats, began, before)
                self._samples[box_id] = _Sample(usage, began, began + REST * took, running)

    def _usage(self, stats: BoxStats, began: float, before: _Sample | None) -> Usage:
        share = None
        if before is not None and stats.cpu_s >= before.usage.cpu_s:
            share = (stats.cpu_s - before.usage.cpu_s) / (began - before.at)
        return Usage(
            at=self._clock.now(),
            cpu_s=stats.cpu_s,
            cpu_share=share,
            memory_bytes=stats.memory_bytes,
            disk_bytes=stats.disk_bytes,
            pids=stats.pids,
            net_rx_bytes=stats.net_rx_bytes,
            net_tx_bytes=stats.net_tx_bytes,
            oom_kills=stats.oom_kills,
            saved_memory_bytes=stats.saved_memory_bytes,
        )

    def _log_bug(self, box_id: str) -> None:
        """Log the current exception once: a bug with one box must not delay the others."""
        if box_id not in self._logged:
            _log.exception("cannot measure the use of resources", extra={"box": box_id})
        self._logged.add(box_id)

    def _log_failure(self, box_id: str, text: str) -> None:
        """Log a failure once, until a measurement succeeds again."""
        if box_id not in self._logged:
            _log.warning(text, extra={"box": box_id})
        self._logged.add(box_id)
