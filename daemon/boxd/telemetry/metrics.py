"""Metrics in the text format of Prometheus: an observer that counts, and the text of all metrics.

`prometheus_client` keeps the counts in a registry of this object, not in its global one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from boxd.observation import OUTCOMES, Event, Work, outcome_of
from boxd.telemetry import definitions
from boxd.telemetry.definitions import Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from prometheus_client.metrics_core import Metric as Family

    from boxd.observation import Observation
    from boxd.telemetry.readings import Reading

FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
"""Upper bounds of the buckets of durations, in seconds."""
MAX_NAMES = 200
"""Maximum number of names of one kind of work; more names are counted as `OTHER`."""
OTHER = "other"


class Metrics:
    """Implements `Observer`. Reports may come from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._readings = _Readings()
        self._registry.register(self._readings)
        self._work = {
            work: _WorkCounts(work, metrics, self._registry)
            for work, metrics in definitions.WORK.items()
        }
        self._ssh = _counter(definitions.SSH_CONNECTIONS, self._registry)
        for event in Event:
            self._ssh.labels(event.value)
        self._lag = Histogram(
            definitions.LOOP_LAG.name,
            definitions.LOOP_LAG.help,
            registry=self._registry,
            buckets=FAST,
        )
        ProcessCollector(namespace="boxd", registry=self._registry)

    def work(
        self, work: Work, name: str = "", parent: str = ""
    ) -> AbstractContextManager[Observation]:
        """Implements `Observer`."""
        del parent
        return _Timing(self._work[work], name)

    def event(self, event: Event) -> None:
        """Implements `Observer`."""
        self._ssh.labels(event.value).inc()

    def lag(self, seconds: float) -> None:
        """Count a delay of the event loop."""
        self._lag.observe(seconds)

    def text(self, readings: Sequence[Reading]) -> bytes:
        """Return all metrics, with these readings. Callers take turns."""
        self._readings.values = readings
        return generate_latest(_WithoutTimes(self._registry))


class _WorkCounts:
    """The counter and the histogram of one kind of work."""

    def __init__(
        self, work: Work, metrics: definitions.WorkMetrics, registry: CollectorRegistry
    ) -> None:
        self._is_http = work is Work.HTTP
        self._labelled = bool(metrics.duration.labels)
        self._names: set[str] = set()
        self._total = _counter(metrics.total, registry)
        self._duration = Histogram(
            metrics.duration.name,
            metrics.duration.help,
            metrics.duration.labels,
            registry=registry,
            buckets=FAST if metrics.is_fast else SLOW,
        )
        if not self._labelled:
            for outcome in OUTCOMES:
                self._total.labels(outcome)

    def add(self, name: str, outcome: str, seconds: float) -> None:
        """Count one piece of work that has ended."""
        if not self._labelled:
            self._total.labels(outcome).inc()
            self._duration.observe(seconds)
            return
        if name not in self._names:
            if len(self._names) >= MAX_NAMES:
                name = f"{OTHER} {OTHER}" if self._is_http else OTHER
            self._names.add(name)
        if self._is_http:
            method, _, route = name.partition(" ")
            status = f"{outcome[0]}xx" if outcome.isdigit() else outcome
            self._total.labels(method, route, status).inc()
            self._duration.labels(route).observe(seconds)
        else:
            self._total.labels(name, outcome).inc()
            self._duration.labels(name).observe(seconds)


class _Timing:
    """Implements `Observation`: measures one piece of work."""

    __slots__ = ("_counts", "_name", "_outcome", "_start")

    def __init__(self, counts: _WorkCounts, name: str) -> None:
        self._counts = counts
        self._name = name
        self._outcome = ""
        self._start = 0.0

    def end_as(self, name: str, outcome: str) -> None:
        self._name, self._outcome = name, outcome

    def __enter__(self) -> _Timing:
        self._start = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        seconds = time.monotonic() - self._start
        self._counts.add(self._name, self._outcome or outcome_of(error), seconds)


class _Readings(Collector):
    """The values that were read for this scrape."""

    def __init__(self) -> None:
        self.values: Sequence[Reading] = ()

    def describe(self) -> Iterable[Family]:
        """Return no families, so that the registry does not collect at the start."""
        return ()

    def collect(self) -> Iterable[Family]:
        """Yield one family for each metric, also for those without a reading."""
        values: defaultdict[Metric, list[Reading]] = defaultdict(list)
        for reading in self.values:
            values[reading.metric].append(reading)
        for metric in definitions.READINGS:
            is_counter = metric.kind is Kind.COUNTER
            family_type = CounterMetricFamily if is_counter else GaugeMetricFamily
            family = family_type(metric.name, metric.help, labels=metric.labels)
            for reading in values[metric]:
                family.add_metric(reading.labels, reading.value)
            yield family


class _WithoutTimes(Collector):
    """All metrics without the `_created` times, which double the number of lines."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Family]:
        """Yield all families."""
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)
