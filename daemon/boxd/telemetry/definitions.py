"""All metrics: their names, types, labels and help texts. docs/operate/metrics.md lists them.

Labels have values of small fixed sets: states, outcomes, templates of routes, names of tools. No
label has text of a user, or identifies an owner, a workspace or a box.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from boxd.observation import Work


class Kind(Enum):
    """The type of a metric in the text format of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `name` has the unit, and `_total` for a counter."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkMetrics:
    """The counter and the durations of one kind of work.

    `labels` of the counter come before `outcome`; the durations have `duration_labels`.
    """

    total: Metric
    duration: Metric
    is_fast: bool = False
    """Whether most of the work takes less than 10 ms."""


def _of_work(
    total: str, duration: str, what: str, label: str = "", *, is_fast: bool = False
) -> WorkMetrics:
    """Return the metrics of work whose name is the value of `label`, or has no label."""
    own = (label,) if label else ()
    return WorkMetrics(
        Metric(f"boxd_{total}_total", Kind.COUNTER, f"Number of {what}.", (*own, "outcome")),
        Metric(f"boxd_{duration}_duration_seconds", Kind.HISTOGRAM, f"Duration of {what}.", own),
        is_fast,
    )


WORK: dict[Work, WorkMetrics] = {
    Work.CREATE: _of_work(
        "box_creations", "box_creation", "creations of boxes, from the checks to the running box"
    ),
    Work.WAKE: _of_work(
        "box_wakes", "box_wake", "starts of existing boxes, from their memory or disk"
    ),
    Work.SUSPEND: _of_work("box_suspends", "box_suspend", "suspensions of boxes"),
    Work.FORK: _of_work("box_forks", "box_fork", "forks of boxes and snapshots"),
    Work.REMOVE: _of_work("box_removals", "box_removal", "removals of boxes"),
    Work.ATTACH: _of_work(
        "box_attaches", "box_attach", "waits of clients until their box runs", is_fast=True
    ),
    Work.EXEC: _of_work("exec_commands", "exec", "commands that HTTP, MCP and tasks ran in boxes"),
    Work.HTTP: WorkMetrics(
        Metric(
            "boxd_http_requests_total",
            Kind.COUNTER,
            "Number of HTTP requests and WebSockets that have ended.",
            ("method", "route", "status"),
        ),
        Metric(
            "boxd_http_request_duration_seconds",
            Kind.HISTOGRAM,
            "Duration of HTTP requests and WebSockets, including the transfer of their bodies.",
            ("route",),
        ),
        is_fast=True,
    ),
    Work.SSH_CHANNEL: _of_work(
        "ssh_channels",
        "ssh_channel",
        "SSH channels; of forwards, until they are open",
        "kind",
    ),
    Work.MCP_CALL: _of_work("mcp_calls", "mcp_call", "calls of MCP tools", "tool"),
    Work.QUERY: _of_work(
        "postgres_queries", "postgres_query", "statements on the control database", is_fast=True
    ),
    Work.DRIVE_CALL: _of_work(
        "drive_metadata_calls",
        "drive_metadata_call",
        "calls of the metadata database for drives that HTTP and MCP use",
        is_fast=True,
    ),
}

SSH_CONNECTIONS = Metric(
    "boxd_ssh_connections_total",
    Kind.COUNTER,
    "Number of SSH connections: accepted, dropped by a limit, or ended without authentication.",
    ("event",),
)
LOOP_LAG = Metric(
    "boxd_event_loop_lag_seconds",
    Kind.HISTOGRAM,
    "Delay of a timer of the event loop, measured twice a second.",
)

BOXES = Metric("boxd_boxes", Kind.GAUGE, "Number of boxes by state.", ("state",))
ATTACHMENTS = Metric("boxd_box_attachments", Kind.GAUGE, "Number of clients that hold a box awake.")
ADMISSION_WAITS = Metric(
    "boxd_admission_waits", Kind.GAUGE, "Starts of boxes that wait for the check of the limits."
)
PENDING_REMOVALS = Metric(
    "boxd_pending_removals", Kind.GAUGE, "Removals of boxes that have begun and have not ended."
)
REMOVAL_RETRIES = Metric(
    "boxd_removal_retries", Kind.GAUGE, "Removed boxes of which parts remain; removed again later."
)
SETTLE_RETRIES = Metric(
    "boxd_settle_retries", Kind.GAUGE, "Boxes that a failure left between two states."
)
SSH_OPEN_CONNECTIONS = Metric(
    "boxd_ssh_open_connections", Kind.GAUGE, "Number of open SSH connections."
)
SSH_OPEN_CHANNELS = Metric("boxd_ssh_open_channels", Kind.GAUGE, "Number of open SSH channels.")
HTTP_OPEN_CONNECTIONS = Metric(
    "boxd_http_open_connections", Kind.GAUGE, "Number of open connections of the HTTP API."
)
POOL_CONNECTIONS = Metric(
    "boxd_postgres_pool_connections",
    Kind.GAUGE,
    "Connections to the control database by use: busy or idle.",
    ("use",),
)
POOL_LIMIT = Metric(
    "boxd_postgres_pool_limit", Kind.GAUGE, "Maximum number of connections to the control database."
)
POOL_WAITS = Metric(
    "boxd_postgres_pool_waits", Kind.GAUGE, "Statements that wait for a connection of the pool."
)
API_DRIVES = Metric(
    "boxd_drive_api_sessions",
    Kind.GAUGE,
    "Drives that HTTP and MCP have open, by use: busy or idle.",
    ("use",),
)
BUILD = Metric(
    "boxd_build_info",
    Kind.GAUGE,
    "Always 1. The labels are the versions of the service and of Python.",
    ("version", "python"),
)

MOUNTS = Metric("boxd_drive_mounts", Kind.GAUGE, "Number of mount processes on this host.")
MOUNTS_FAILING = Metric(
    "boxd_drive_mounts_failing",
    Kind.GAUGE,
    "Mounts that report a problem of a store, or do not answer.",
)
MOUNT_GAUGES: dict[str, Metric] = {
    "pending_bytes": Metric(
        "boxd_drive_unwritten_bytes", Kind.GAUGE, "Bytes in mounts that are not committed yet."
    ),
    "open_files": Metric("boxd_drive_open_files", Kind.GAUGE, "Open files of all mounts."),
    "cache_memory_bytes": Metric(
        "boxd_drive_cache_memory_bytes", Kind.GAUGE, "Blocks that mounts cache in memory."
    ),
    "cache_disk_bytes": Metric(
        "boxd_drive_cache_disk_bytes", Kind.GAUGE, "Blocks that mounts cache on disk."
    ),
    "memory_bytes": Metric(
        "boxd_drive_mount_memory_bytes", Kind.GAUGE, "Resident memory of all mount processes."
    ),
    "leases": Metric(
        "boxd_drive_leases", Kind.GAUGE, "Directories that mounts cache under a lease."
    ),
    "unsent_changes": Metric(
        "boxd_drive_unsent_changes",
        Kind.GAUGE,
        "Changes that mounts answered and that only their journal has.",
    ),
    "queued_uploads": Metric(
        "boxd_drive_queued_uploads", Kind.GAUGE, "Uploads of blocks that wait for a slot."
    ),
    "running_uploads": Metric(
        "boxd_drive_running_uploads", Kind.GAUGE, "Uploads of blocks in progress."
    ),
}
"""Sums over all mounts, by the name of the field in a mount's report."""
MOUNT_TOTALS: dict[str, Metric] = {
    "recalls_total": Metric(
        "boxd_drive_lease_recalls_total",
        Kind.COUNTER,
        "Leases of mounts that other sessions recalled.",
    ),
    "flushes_total": Metric(
        "boxd_drive_flushes_total",
        Kind.COUNTER,
        "Batches of changes that mounts sent to the metadata database.",
    ),
    "cache_hits_total": Metric(
        "boxd_drive_cache_hits_total",
        Kind.COUNTER,
        "Pieces of blocks that reads of mounts found in memory.",
    ),
    "cache_misses_total": Metric(
        "boxd_drive_cache_misses_total",
        Kind.COUNTER,
        "Pieces of blocks that reads of mounts did not find in memory.",
    ),
    "cache_disk_hits_total": Metric(
        "boxd_drive_cache_disk_hits_total",
        Kind.COUNTER,
        "Ranges of blocks that the disk caches of mounts had.",
    ),
    "metadata_calls_total": Metric(
        "boxd_drive_mount_metadata_calls_total",
        Kind.COUNTER,
        "Calls of the metadata database by mounts.",
    ),
}
"""Totals over all mounts, by the name of the field in a mount's report."""

PROCESS = (
    Metric(
        "boxd_process_cpu_seconds_total",
        Kind.COUNTER,
        "Total user and system CPU time spent in seconds.",
    ),
    Metric("boxd_process_resident_memory_bytes", Kind.GAUGE, "Resident memory size in bytes."),
    Metric("boxd_process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory size in bytes."),
    Metric(
        "boxd_process_start_time_seconds",
        Kind.GAUGE,
        "Start time of the process since unix epoch in seconds.",
    ),
    Metric("boxd_process_open_fds", Kind.GAUGE, "Number of open file descriptors."),
    Metric("boxd_process_max_fds", Kind.GAUGE, "Maximum number of open file descriptors."),
)
"""Figures of the front process, which the library of Prometheus measures."""

READINGS = (
    BOXES,
    ATTACHMENTS,
    ADMISSION_WAITS,
    PENDING_REMOVALS,
    REMOVAL_RETRIES,
    SETTLE_RETRIES,
    SSH_OPEN_CONNECTIONS,
    SSH_OPEN_CHANNELS,
    HTTP_OPEN_CONNECTIONS,
    POOL_CONNECTIONS,
    POOL_LIMIT,
    POOL_WAITS,
    API_DRIVES,
    MOUNTS,
    MOUNTS_FAILING,
    *MOUNT_GAUGES.values(),
    *MOUNT_TOTALS.values(),
    BUILD,
)
"""Metrics that are read at each scrape."""


def all_metrics() -> list[Metric]:
    """Return every metric, in the order of the documentation."""
    of_work = [metric for work in WORK.values() for metric in (work.total, work.duration)]
    return [*of_work, SSH_CONNECTIONS, LOOP_LAG, *READINGS, *PROCESS]
