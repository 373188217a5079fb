"""Starts and stops what reports about the service: its observer, the listener, and the samplers."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING

from boxd.observation import UNOBSERVED, Observer
from boxd.tasks import BackgroundTasks
from boxd.telemetry import definitions
from boxd.telemetry.choose import metrics_of, traces_of
from boxd.telemetry.listener import MetricsListener
from boxd.telemetry.mounts import MountFigures
from boxd.telemetry.pair import Pair
from boxd.telemetry.readings import Reading, Sources

if TYPE_CHECKING:
    import socket

    from boxd.names.address import Address
    from boxd.settings.telemetry import TelemetrySettings
    from boxd.telemetry.metrics import Metrics
    from boxd.telemetry.mounts import Mounts

LAG_S = 0.5
"""Seconds between two measurements of the event loop."""
DISTRIBUTION = "box-service"


class Telemetry:
    """Call `start` once and `close` last. Without flags it does nothing.

    `observer` receives the reports of all parts. `sources` are the parts with figures.
    """

    def __init__(self, settings: TelemetrySettings, bound: socket.socket | None = None) -> None:
        """`bound` is the bound socket for metrics; None: `start` binds one."""
        self._settings = settings
        self._bound = bound
        self._stack = AsyncExitStack()
        self._tasks = BackgroundTasks()
        self._metrics: Metrics | None = None
        self._version = version(DISTRIBUTION)
        self.observer: Observer = UNOBSERVED
        self.sources = Sources()

    async def start(self) -> Address | None:
        """Start; return the address of the listener, if there is one. Raises Unavailable."""
        address = None
        if self._settings.metrics_addr is not None:
            self._metrics = self.observer = metrics = metrics_of()
            listener = MetricsListener(self._settings.metrics_addr, self._text, self._bound)
            address = await listener.start()
            self._stack.push_async_callback(listener.close)
            self._tasks.start(_measure_lag(metrics), name="event loop lag")
            self._stack.push_async_callback(self._tasks.close)
        if self._settings.trace_endpoint is not None:
            traces = traces_of(self._settings.trace_endpoint, self._version)
            self._stack.push_async_callback(traces.close)
            self.observer = traces if self._metrics is None else Pair(self._metrics, traces)
        return address

    def watch_mounts(self, mounts: Mounts) -> None:
        """Sample the mounts of this host from now on, if metrics are served."""
        if self._metrics is not None:
            figures = MountFigures(mounts)
            self.sources.mounts = figures.readings
            self._tasks.start(figures.run(), name="figures of mounts")

    async def close(self) -> None:
        """Stop everything. Idempotent."""
        await self._stack.aclose()

    async def _text(self) -> bytes:
        if self._metrics is None:
            return b""
        python = ".".join(map(str, sys.version_info[:3]))
        build = Reading(definitions.BUILD, 1, (self._version, python))
        return await asyncio.to_thread(self._metrics.text, [*self.sources.read(), build])


async def _measure_lag(metrics: Metrics) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_S
        await asyncio.sleep(LAG_S)
        metrics.lag(max(0.0, loop.time() - due))
