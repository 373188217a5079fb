"""A real service: what it counts, the traces it sends, its log in JSON, and its dashboard."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.telemetry.definitions import all_metrics
from tests.harness.http.mcp import ACCEPT, MODERN, envelope
from tests.harness.servers.otlp import otlp_receiver
from tests.harness.servers.scrape import Scrape
from tests.harness.service.daemon import open_daemon
from tests.harness.service.user import User

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.servers.otlp import ReceivedSpan, Receiver
    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(180)
DASHBOARD = Path(__file__).parents[4] / "docs/operate/grafana-boxd.json"
TRACE = "0af7651916cd43dd8448eb211c80319c"
DOOR = "b7ad6b7169203331"
SECRET_FILE = "hunter2-plans.txt"
MCP = {
    **ACCEPT,
    "mcp-protocol-version": MODERN,
    "mcp-method": "tools/call",
    "mcp-name": "ws_list",
}
SECRET_COMMAND = "echo hunter2"


@dataclass
class Observed:
    """A service with metrics, traces and a log in JSON, and a user who has used it."""

    daemon: Daemon
    receiver: Receiver
    before: Scrape
    after: Scrape
    lines: list[dict[str, object]]
    owner: str
    box_id: str


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition; fail after a deadline."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def lines_of(daemon: Daemon) -> list[dict[str, object]]:
    """Return the records of the log; each line is one JSON object."""
    return [json.loads(line) for line in daemon.log.read_text().splitlines()]


def scrape(daemon: Daemon) -> Scrape:
    """Return the metrics of the service now."""
    serving = next(one for one in lines_of(daemon) if one["message"] == "boxd is serving")
    return Scrape.of(str(serving["metrics"]))


@pytest.fixture(scope="module")
def observed(image_rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """Yield a service whose user has created, used, suspended, woken and removed boxes."""
    with otlp_receiver() as receiver:
        flags = ["--log-format", "json", "--metrics-addr", "127.0.0.1:0"]
        flags += ["--trace-endpoint", receiver.url]
        with open_daemon(image_rootfs, flags=flags) as daemon:
            before = scrape(daemon)
            user = User(daemon, tmp_path_factory.mktemp("user"))
            box_id, owner = use(user, receiver)
            until(
                lambda: scrape(daemon).value("boxd_drive_mounts") == 1,
                "the mount is not in the metrics",
            )
            yield Observed(
                daemon, receiver, before, scrape(daemon), lines_of(daemon), owner, box_id
            )


def use(user: User, receiver: Receiver) -> tuple[str, str]:
    """Use the service in every way that is counted; return a box's id and its owner."""
    user.ssh("dev", f"echo plan > /wrk/{SECRET_FILE}")
    key = user.ssh("cli", "apikeys create laptop")
    traced = {"Content-Type": "text/plain", "traceparent": f"00-{TRACE}-{DOOR}-01"}
    command = SECRET_COMMAND.encode()
    assert user.send(key, "/v1/exec/dev?stream=false", command, traced)[0] == 200
    assert user.get(key, f"/v1/wrk/{SECRET_FILE}")[0] == 200
    assert user.get(key, "/v1/boxes")[0] == 200
    assert user.get("svc_" + "0" * 40, "/v1/boxes")[0] == 401
    params = {"name": "ws_list", "arguments": {}, "_meta": envelope()}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    status, answer = user.send(key, "/v1/mcp", json.dumps(call).encode(), MCP)
    assert status == 200, answer
    box = next(one for ref, one in user.boxes().items() if ref == "dev")
    user.ssh("cli", "suspend dev")
    user.ssh("cli", "resume dev")
    user.ssh("cli", "snapshot fork dev copy")
    user.ssh("cli", "rm copy")
    until(lambda: receiver.named("GET /v1/wrk/{path...}"), "no trace of the drive has arrived")
    until(lambda: receiver.named("wake box"), "no trace of the wake has arrived")
    return str(box["id"]), json.loads(user.ssh("cli", "whoami --json"))["fingerprint"]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("boxd_box_creations_total", {"outcome": "ok"}),
        ("boxd_box_suspends_total", {"outcome": "ok"}),
        ("boxd_box_wakes_total", {"outcome": "ok"}),
        ("boxd_box_forks_total", {"outcome": "ok"}),
        ("boxd_box_removals_total", {"outcome": "ok"}),
        ("boxd_box_attaches_total", {"outcome": "ok"}),
        ("boxd_exec_commands_total", {"outcome": "ok"}),
        ("boxd_exec_duration_seconds_count", {}),
        ("boxd_http_requests_total", {"route": "/v1/boxes", "method": "GET", "status": "2xx"}),
        ("boxd_http_requests_total", {"route": "/v1/boxes", "method": "GET", "status": "4xx"}),
        ("boxd_http_request_duration_seconds_count", {"route": "/v1/wrk/{path...}"}),
        ("boxd_ssh_connections_total", {"event": "accepted"}),
        ("boxd_ssh_channels_total", {"kind": "session", "outcome": "ok"}),
        ("boxd_ssh_channels_total", {"kind": "console", "outcome": "ok"}),
        ("boxd_mcp_calls_total", {"tool": "ws_list", "outcome": "ok"}),
        ("boxd_postgres_queries_total", {"outcome": "ok"}),
        ("boxd_drive_metadata_calls_total", {"outcome": "ok"}),
        ("boxd_event_loop_lag_seconds_count", {}),
        ("boxd_process_cpu_seconds_total", {}),
    ],
)
def test_use_of_the_service_is_counted(
    observed: Observed, name: str, labels: dict[str, str]
) -> None:
    assert observed.after.value(name, **labels) > observed.before.value(name, **labels)


def test_gauges_show_the_present_state(observed: Observed) -> None:
    seen = observed.after
    assert seen.value("boxd_boxes", state="running") == 1
    assert seen.value("boxd_boxes") == 1
    assert seen.value("boxd_postgres_pool_limit") >= 1
    assert seen.value("boxd_drive_mounts") == 1
    assert seen.value("boxd_drive_mounts_failing") == 0
    assert seen.value("boxd_drive_mount_memory_bytes") > 1 << 20
    assert seen.value("boxd_process_resident_memory_bytes") > 1 << 20
    assert seen.value("boxd_build_info") == 1


def test_the_service_serves_exactly_the_documented_metrics(observed: Observed) -> None:
    documented = {metric.name: metric.kind.value for metric in all_metrics()}
    assert observed.after.types == documented
    assert observed.after.helps == {metric.name: metric.help for metric in all_metrics()}


def test_metrics_name_no_user(observed: Observed) -> None:
    for text in ("dev", observed.box_id, observed.owner, SECRET_FILE, "hunter2", "laptop"):
        assert not re.search(rf"\b{re.escape(text)}\b", observed.after.text), text


def test_every_expression_of_the_dashboard_uses_metrics_of_the_service(
    observed: Observed,
) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [variable["query"] for variable in dashboard["templating"]["list"]]
    queries += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    queries += [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for query in queries for name in re.findall(r"\bboxd_\w+", query)}
    assert len(used) > 40
    assert not used - observed.after.sample_names()
    for query in queries:
        assert query.count("(") == query.count(")")
        for name, label in re.findall(r'(boxd_\w+)\{[^}]*?(\w+)="(?:ok|failed)"', query):
            assert observed.after.labels(name, label)


def test_one_trace_leads_from_the_door_to_the_database(observed: Observed) -> None:
    spans = [span for span in observed.receiver.spans if span.trace_id == TRACE]
    by_id = {span.span_id: span for span in spans}
    (door,) = [span for span in spans if span.parent_id == DOOR]
    assert door.name == "POST /v1/exec/{spec...}"
    assert door.attributes["http.response.status_code"] == "200"
    query = next(span for span in spans if span.name == "query select api_key")
    assert _first(query, by_id) == door
    assert {"attach", "exec"} <= {span.name for span in spans}


def test_a_read_of_the_drive_has_the_calls_of_its_metadata(observed: Observed) -> None:
    (door,) = observed.receiver.named("GET /v1/wrk/{path...}")
    by_id = {span.span_id: span for span in observed.receiver.spans}
    calls = [
        span
        for span in observed.receiver.spans
        if span.attributes["boxd.work"] == "drive metadata call" and _first(span, by_id) == door
    ]
    assert "drive metadata call lookup" in {span.name for span in calls}


def test_steps_of_the_lifecycle_are_below_their_door(observed: Observed) -> None:
    by_id = {span.span_id: span for span in observed.receiver.spans}
    for name, door in (
        ("create box", "ssh channel session"),
        ("suspend box", "ssh channel console"),
        ("wake box", "ssh channel console"),
        ("fork box", "ssh channel console"),
        ("mcp call ws_list", "POST /v1/mcp"),
    ):
        spans = observed.receiver.named(name)
        assert door in {_first(span, by_id).name for span in spans}, name


def _first(span: ReceivedSpan, by_id: dict[str, ReceivedSpan]) -> ReceivedSpan:
    """Return the first span of the service above a span."""
    while span.parent_id in by_id:
        span = by_id[span.parent_id]
    return span


def test_traces_name_no_user(observed: Observed) -> None:
    sent = b"".join(observed.receiver.bodies)
    for text in (observed.box_id, observed.owner, SECRET_FILE, "hunter2", "laptop", "svc_"):
        assert text.encode() not in sent, text


def test_every_line_of_the_log_is_a_record(observed: Observed) -> None:
    for line in observed.lines:
        assert {"time", "level", "logger", "message"} <= line.keys()
    created = next(line for line in observed.lines if line["message"] == "box created")
    assert created["box"] == observed.box_id
    assert created["image"] == "debian"


def test_the_records_of_a_request_have_the_id_of_its_trace(observed: Observed) -> None:
    access = [line for line in observed.lines if line["logger"] == "boxd.http.access"]
    assert TRACE in {line.get("trace_id") for line in access}
