"""Readings: values of metrics that the service reads at each scrape, from memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.telemetry import definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from boxd.boxes.lifecycle.figures import BoxFigures
    from boxd.store.postgres.pool import PoolUse
    from boxd.telemetry.definitions import Metric


@dataclass(frozen=True, slots=True)
class Reading:
    """A value of a metric, with the values of its labels."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Sources:
    """The parts of the service that have figures. None: the part has not started."""

    boxes: Callable[[], BoxFigures] | None = None
    pool: Callable[[], PoolUse] | None = None
    api_drives: Callable[[], tuple[int, int]] | None = None
    """Returns the numbers of open drives of HTTP and MCP that are busy, and idle."""
    ssh: Callable[[], tuple[int, int]] | None = None
    """Returns the numbers of open connections and of open channels."""
    http: Callable[[], int] | None = None
    """Returns the number of open connections."""
    mounts: Callable[[], Iterator[Reading]] | None = None

    def read(self) -> list[Reading]:
        """Return the readings of all parts that have started. Nothing here waits."""
        return [*self._boxes(), *self._connections(), *self._stores()]

    def _boxes(self) -> Iterator[Reading]:
        if self.boxes is None:
            return
        figures = self.boxes()
        for state, number in figures.boxes.items():
            yield Reading(definitions.BOXES, number, (state,))
        yield Reading(definitions.ATTACHMENTS, figures.attachments)
        yield Reading(definitions.ADMISSION_WAITS, figures.admission_waits)
        yield Reading(definitions.PENDING_REMOVALS, figures.pending_removals)
        yield Reading(definitions.REMOVAL_RETRIES, figures.removal_retries)
        yield Reading(definitions.SETTLE_RETRIES, figures.settle_retries)

    def _connections(self) -> Iterator[Reading]:
        if self.ssh is not None:
            connections, channels = self.ssh()
            yield Reading(definitions.SSH_OPEN_CONNECTIONS, connections)
            yield Reading(definitions.SSH_OPEN_CHANNELS, channels)
        if self.http is not None:
            yield Reading(definitions.HTTP_OPEN_CONNECTIONS, self.http())

    def _stores(self) -> Iterator[Reading]:
        if self.pool is not None:
            use = self.pool()
            yield Reading(definitions.POOL_CONNECTIONS, use.busy, ("busy",))
            yield Reading(definitions.POOL_CONNECTIONS, use.idle, ("idle",))
            yield Reading(definitions.POOL_LIMIT, use.limit)
            yield Reading(definitions.POOL_WAITS, use.waiting)
        if self.api_drives is not None:
            busy, idle = self.api_drives()
            yield Reading(definitions.API_DRIVES, busy, ("busy",))
            yield Reading(definitions.API_DRIVES, idle, ("idle",))
        if self.mounts is not None:
            yield from self.mounts()
