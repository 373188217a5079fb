"""The observer counts work by outcome and duration; its text parses and its labels are bounded."""

from __future__ import annotations

import asyncio

import pytest

from boxd.errors import Conflict, Unavailable
from boxd.observation import Event, Work
from boxd.telemetry import definitions
from boxd.telemetry.definitions import all_metrics
from boxd.telemetry.metrics import MAX_NAMES, OTHER, Metrics
from boxd.telemetry.readings import Reading, Sources
from tests.harness.servers.scrape import Scrape


def scrape(metrics: Metrics, *readings: Reading) -> Scrape:
    """Return the parsed text."""
    return Scrape(metrics.text(readings).decode())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Conflict("the box is in use"), "refused"),
        (Unavailable("the database does not answer"), "failed"),
        (RuntimeError("a bug"), "failed"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_an_exception_decides_the_outcome(error: BaseException, outcome: str) -> None:
    metrics = Metrics()
    with pytest.raises(type(error)), metrics.work(Work.WAKE):
        raise error
    seen = scrape(metrics)
    assert seen.value("boxd_box_wakes_total", outcome=outcome) == 1
    assert seen.value("boxd_box_wakes_total") == 1
    assert seen.value("boxd_box_wake_duration_seconds_count") == 1
    assert "does not answer" not in seen.text


def test_http_requests_have_method_route_and_class_of_status() -> None:
    metrics = Metrics()
    with metrics.work(Work.HTTP) as request:
        request.end_as("GET /v1/boxes/{ref}", "404")
    with metrics.work(Work.HTTP) as request:
        request.end_as("GET /v1/boxes/{ref}", "none")
    seen = scrape(metrics)
    name, route = "boxd_http_requests_total", "/v1/boxes/{ref}"
    assert seen.value(name, method="GET", route=route, status="4xx") == 1
    assert seen.value(name, method="GET", route=route, status="none") == 1
    assert seen.value("boxd_http_request_duration_seconds_count", route=route) == 2


def test_the_number_of_label_values_is_bounded() -> None:
    metrics = Metrics()
    for number in range(3 * MAX_NAMES):
        with metrics.work(Work.MCP_CALL, f"tool_{number}"):
            pass
        with metrics.work(Work.HTTP) as request:
            request.end_as(f"GET /{number}", "200")
    seen = scrape(metrics)
    assert len(seen.labels("boxd_mcp_calls_total", "tool")) == MAX_NAMES + 1
    assert seen.value("boxd_mcp_calls_total", tool=OTHER) == 2 * MAX_NAMES
    assert len(seen.labels("boxd_http_requests_total", "route")) == MAX_NAMES + 1


def test_events_and_delays_are_counted() -> None:
    metrics = Metrics()
    metrics.event(Event.SSH_AUTH_FAILED)
    metrics.lag(0.3)
    seen = scrape(metrics)
    assert seen.value("boxd_ssh_connections_total", event="failed_auth") == 1
    assert seen.value("boxd_ssh_connections_total", event="limited") == 0
    assert seen.value("boxd_event_loop_lag_seconds_sum") == 0.3


def test_readings_appear_with_their_labels() -> None:
    seen = scrape(Metrics(), Reading(definitions.BOXES, 3, ("running",)))
    assert seen.value("boxd_boxes", state="running") == 3


def test_every_defined_metric_is_in_the_text_and_no_other() -> None:
    seen = scrape(Metrics())
    assert seen.types == {metric.name: metric.kind.value for metric in all_metrics()}
    assert seen.helps == {metric.name: metric.help for metric in all_metrics()}
    assert "_created" not in seen.text


def test_two_observers_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    with first.work(Work.FORK):
        pass
    assert scrape(second).value("boxd_box_forks_total") == 0


def test_parts_that_have_not_started_have_no_readings() -> None:
    assert Sources().read() == []
