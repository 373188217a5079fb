"""Traces: parents and children, nothing of users, and a receiver that does not answer."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from boxd.errors import NotFound, Unavailable
from boxd.observation import Work
from boxd.telemetry.metrics import Metrics
from boxd.telemetry.pair import Pair
from boxd.telemetry.traces import BATCH, QUEUE, Traces
from tests.harness.logs import provoked
from tests.harness.servers.otlp import otlp_receiver
from tests.harness.servers.scrape import Scrape

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_children_have_the_trace_of_the_door() -> None:
    with otlp_receiver() as receiver:
        traces = Traces(receiver.url, "1")
        with traces.work(Work.HTTP, parent=PARENT) as request:
            with traces.work(Work.ATTACH), traces.work(Work.QUERY, "select box"):
                await asyncio.create_task(_call(traces))
            request.end_as("POST /v1/exec/{spec...}", "200")
        await traces.close()
    spans = {span.name: span for span in receiver.spans}
    door, attach = spans["POST /v1/exec/{spec...}"], spans["attach"]
    query, tool = spans["query select box"], spans["mcp call box_list"]
    assert {span.trace_id for span in receiver.spans} == {PARENT.split("-")[1]}
    assert door.parent_id == PARENT.split("-")[2]
    assert attach.parent_id == door.span_id
    assert query.parent_id == attach.span_id
    assert tool.parent_id == query.span_id
    assert door.attributes == {
        "boxd.work": "http request",
        "boxd.outcome": "200",
        "http.request.method": "POST",
        "http.route": "/v1/exec/{spec...}",
        "http.response.status_code": "200",
    }


async def _call(traces: Traces) -> None:
    with traces.work(Work.MCP_CALL, "box_list"):
        pass


@pytest.mark.parametrize("parent", ["", "nonsense", PARENT[:-5], "00-" + "0" * 32 + PARENT[35:]])
async def test_a_bad_parent_starts_a_new_trace(parent: str) -> None:
    with otlp_receiver() as receiver:
        traces = Traces(receiver.url, "1")
        with traces.work(Work.HTTP, parent=parent):
            pass
        await traces.close()
    (span,) = receiver.spans
    assert span.parent_id == ""


async def test_queries_of_no_other_work_have_no_span() -> None:
    with otlp_receiver() as receiver:
        traces = Traces(receiver.url, "1")
        with traces.work(Work.QUERY, "select box"):
            pass
        with traces.work(Work.SUSPEND):
            left = asyncio.Event()
            late = asyncio.create_task(_query_after(traces, left))
        left.set()
        await late
        await traces.close()
    assert [span.name for span in receiver.spans] == ["suspend box"]


async def _query_after(traces: Traces, left: asyncio.Event) -> None:
    await left.wait()
    with traces.work(Work.QUERY, "select box"):
        pass


async def test_texts_of_errors_are_not_sent() -> None:
    with otlp_receiver() as receiver:
        traces = Traces(receiver.url, "1")
        for error in (NotFound("no file hunter2"), Unavailable("hunter2 does not answer")):
            with pytest.raises(type(error)), traces.work(Work.WAKE):
                raise error
        await traces.close()
    assert [span.attributes["boxd.outcome"] for span in receiver.spans] == ["refused", "failed"]
    assert [span.is_error for span in receiver.spans] == [False, True]
    assert b"hunter2" not in b"".join(receiver.bodies)


async def test_log_records_have_the_id_of_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    with otlp_receiver() as receiver, caplog.at_level(logging.INFO, "boxd.test"):
        traces = Traces(receiver.url, "1")
        with traces.work(Work.HTTP, parent=PARENT):
            logging.getLogger("boxd.test").info("inside")
        logging.getLogger("boxd.test").info("outside")
        await traces.close()
    inside, outside = caplog.records
    assert vars(inside)["trace_id"] == PARENT.split("-")[1]
    assert "trace_id" not in vars(outside)


async def test_a_receiver_that_refuses_is_reported_once_and_then_again_when_it_works() -> None:
    with otlp_receiver() as receiver, provoked("boxd.telemetry.traces") as lines:
        receiver.status = 400
        traces = Traces(receiver.url, "1")
        for _ in range(3):
            with traces.work(Work.FORK):
                pass
            await asyncio.to_thread(traces.flush)
        receiver.status = 200
        with traces.work(Work.FORK):
            pass
        await traces.close()
    assert len(lines) == 1
    assert "traces are dropped" in lines[0]
    assert len(receiver.spans) == 1


async def test_a_dead_receiver_neither_delays_work_nor_fills_memory() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, provoked("boxd.telemetry.traces"):
        traces = Traces(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", "1")
        for _ in range(4 * QUEUE):
            with traces.work(Work.FORK):
                pass
        spans = sum(isinstance(one, ReadableSpan) for one in gc.get_objects())
        assert spans <= QUEUE + BATCH + 1
        await traces.close()  # bounded, although the receiver never answers


async def test_metrics_and_traces_see_the_same_work() -> None:
    metrics = Metrics()
    with otlp_receiver() as receiver:
        traces = Traces(receiver.url, "1")
        both = Pair(metrics, traces)
        with both.work(Work.HTTP) as request:
            request.end_as("GET /healthz", "503")
        with pytest.raises(NotFound), both.work(Work.FORK):
            raise NotFound("no such box")
        await traces.close()
    seen = Scrape(metrics.text([]).decode())
    assert seen.value("boxd_http_requests_total", route="/healthz", status="5xx") == 1
    assert seen.value("boxd_box_forks_total", outcome="refused") == 1
    assert [(span.name, span.is_error) for span in receiver.spans] == [
        ("GET /healthz", True),
        ("fork box", False),
    ]
