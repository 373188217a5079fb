"""Figures of the mount processes on this host, sampled in the background.

A report of a mount costs a call of each of its stores, so scrapes read the last sample. Mount
processes serve the files of users: a report counts only as far as its numbers are plausible.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from boxd.errors import BoxdError
from boxd.telemetry import definitions
from boxd.telemetry.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SAMPLE_S = 15.0
"""Seconds between two samples."""
AT_ONCE = 4
"""Number of mounts that are asked at the same time."""
HEALTHY = "ok"
MAX_VALUE = 1 << 62

_log = logging.getLogger(__name__)


class Mounts(Protocol):
    """Mount processes of this host; `boxd.workspaces.mounts` implements it."""

    async def present(self) -> list[str]:
        """List the volumes with a mount process on this host."""
        ...

    async def health(self, volume_id: str) -> dict[str, object]:
        """Return the report of a volume's mount; {} without a mount."""
        ...


class MountFigures:
    """Sums over all mounts. A total never shrinks when a mount ends or starts again."""

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts
        self._number = self._failing = 0
        self._gauges = dict.fromkeys(definitions.MOUNT_GAUGES, 0)
        self._totals = dict.fromkeys(definitions.MOUNT_TOTALS, 0)
        self._last: dict[str, dict[str, int]] | None = None

    async def run(self) -> None:
        """Sample until this is cancelled."""
        while True:
            try:
                await self.sample()
            except BoxdError as error:
                _log.debug("no figures of mounts: %s", error)
            await asyncio.sleep(SAMPLE_S)

    async def sample(self) -> None:
        """Ask all mounts once. Raises what `Mounts` raises."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask(volume: str) -> dict[str, object]:
            async with slots:
                return await self._mounts.health(volume)

        volumes = await self._mounts.present()
        reports = dict(zip(volumes, await asyncio.gather(*map(ask, volumes)), strict=True))
        self._number = len(reports)
        self._failing = sum(report.get("health") != HEALTHY for report in reports.values())
        numbers = {volume: _numbers(report) for volume, report in reports.items()}
        for name in self._gauges:
            self._gauges[name] = sum(of_mount.get(name, 0) for of_mount in numbers.values())
        self._add(numbers)

    def readings(self) -> Iterator[Reading]:
        """Yield the figures of the last sample."""
        yield Reading(definitions.MOUNTS, self._number)
        yield Reading(definitions.MOUNTS_FAILING, self._failing)
        for name, metric in definitions.MOUNT_GAUGES.items():
            yield Reading(metric, self._gauges[name])
        for name, metric in definitions.MOUNT_TOTALS.items():
            yield Reading(metric, self._totals[name])

    def _add(self, numbers: dict[str, dict[str, int]]) -> None:
        """Add what each total of a mount has grown by since its last report."""
        if self._last is None:
            self._last = numbers  # these mounts ran before this process
            return
        for volume, of_mount in numbers.items():
            before = self._last.get(volume, {})
            for name in self._totals:
                now, last = of_mount.get(name), before.get(name, 0)
                if now is not None:
                    self._totals[name] += now - last if now >= last else now
        # A mount that did not answer keeps its last numbers.
        self._last = {volume: numbers[volume] or self._last.get(volume, {}) for volume in numbers}


def _numbers(report: Mapping[str, object]) -> dict[str, int]:
    """Return the plausible numbers of a report by name."""
    statistics = report.get("statistics")
    fields = {**report, **statistics} if isinstance(statistics, dict) else report
    return {
        name: value
        for name in (*definitions.MOUNT_GAUGES, *definitions.MOUNT_TOTALS)
        if isinstance(value := fields.get(name), int) and 0 <= value <= MAX_VALUE
    }
