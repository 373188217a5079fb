"""Names, units and labels of all metrics follow the conventions of Prometheus."""

from __future__ import annotations

import re

import pytest

from boxd.observation import Work
from boxd.telemetry.definitions import WORK, Kind, Metric, all_metrics

BOUNDED = {
    "event",
    "kind",
    "method",
    "outcome",
    "python",
    "route",
    "state",
    "status",
    "tool",
    "use",
    "version",
}
"""Labels with values of small fixed sets."""


def _name(metric: Metric) -> str:
    return metric.name


def test_every_kind_of_work_has_metrics() -> None:
    assert set(WORK) == set(Work)


def test_no_name_is_defined_twice() -> None:
    names = [metric.name for metric in all_metrics()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("metric", all_metrics(), ids=_name)
def test_a_metric_follows_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"boxd_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert (metric.kind is not Kind.HISTOGRAM) or metric.name.endswith("_seconds")
    assert metric.help.endswith(".")
    assert not set(metric.labels) - BOUNDED
