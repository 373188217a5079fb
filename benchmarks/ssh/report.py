"""Reports the comparison of two SSH servers: JSON for programs, a table for people."""

from __future__ import annotations

import statistics
import subprocess
from typing import TYPE_CHECKING

from benchmarks.report import markdown, revision, write

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.latency import Times
    from benchmarks.ssh.workloads import Connects, Found, Size, Spent

OURS, THEIRS = "boxd", "sshd"
QUANTILES = (50, 95, 99)
CONNECT_GOAL, SCP_GOAL = "<= 250; p99 <= 5 times p50", ">= 100"
NOTE = (
    "ratio: ours / sshd; below 1 is better for times, above 1 for rates. Unless a row says"
    " otherwise, clients request the algorithms that a default client negotiates with boxd:"
    " curve25519-sha256 and chacha20-poly1305."
)


def report(found: Found, size: Size, facts: dict[str, object], to: Path) -> None:
    """Print the tables and write both files."""
    version = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    told = ", ".join(f"{name} {value}" for name, value in {**facts, **revision()}.items())
    lines = [
        f"SSH: boxd with a box, compared with Debian's sshd, {size.bytes >> 20} MiB,"
        f" medians, {version.split(',')[0].strip()}",
        "",
        *markdown(_rows(found, size), left=2),
        "",
        NOTE,
        "",
        "Processor time of the servers:",
        "",
        *markdown(_costs(found, size), left=2),
        "",
        f"Machine: {told}",
    ]
    write(to, "ssh", lines, figures(found, size))


def figures(found: Found, size: Size) -> dict[str, object]:
    """Return the content of the JSON file."""
    ours, theirs = (found.connects["pinned"][side].first for side in (OURS, THEIRS))
    connect: dict[str, object] = {**_quantiles(ours)}
    connect["sshd"] = _quantiles(theirs)
    connect["ratio"] = {
        name: _ratio(ms, _quantiles(theirs)[name]) for name, ms in _quantiles(ours).items()
    }
    rates = {
        transfer.key: _pair(transfer.median(OURS), transfer.median(THEIRS))
        for transfer in found.transfers
        if transfer.key
    }
    times = (statistics.median(found.parallels[side]) for side in (OURS, THEIRS))
    return {"connect_ms": connect, **rates, f"parallel_{size.clients}_s": _pair(*times)}


def _quantiles(times: Times) -> dict[str, float]:
    found = {f"p{percent}": times.percentile(percent) for percent in QUANTILES}
    return {name: round(ms, 2) for name, ms in found.items() if ms is not None}


def _pair(ours: float, theirs: float) -> dict[str, float]:
    return {OURS: round(ours, 2), THEIRS: round(theirs, 2), "ratio": _ratio(ours, theirs)}


def _ratio(ours: float, theirs: float) -> float:
    return round(ours / theirs, 3)


def _rows(found: Found, size: Size) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("measurement", "goal", OURS, THEIRS, "ratio", "runs")]
    own, pinned = found.connects["own"], found.connects["pinned"]
    rows += _connect_rows("first byte", CONNECT_GOAL, pinned, whole=False)
    rows += _connect_rows("end", "", pinned, whole=True)
    ours, theirs = (own[side].first.percentile(50) or 0.0 for side in (OURS, THEIRS))
    runs = len(own[OURS].first.good)
    rows.append(_row("first byte with default algorithms, p50, ms", "", ours, theirs, runs))
    for transfer in found.transfers:
        goal = SCP_GOAL if transfer.key in {"download_MBps", "upload_MBps"} else ""
        ours, theirs = transfer.median(OURS), transfer.median(THEIRS)
        rows.append(_row(f"{transfer.name}, MB/s", goal, ours, theirs, len(transfer.rates[OURS])))
    ours, theirs = (statistics.median(found.parallels[side]) for side in (OURS, THEIRS))
    runs = len(found.parallels[OURS])
    rows.append(_row(f"{size.clients} parallel clients, s", "", ours, theirs, runs))
    return rows


def _connect_rows(
    until: str, goal: str, sides: dict[str, Connects], *, whole: bool
) -> Iterable[tuple[str, ...]]:
    ours, theirs = (sides[side].whole if whole else sides[side].first for side in (OURS, THEIRS))
    for name, ms in _quantiles(ours).items():
        what = f"ssh to the {until}, {name}, ms"
        yield _row(
            what, goal if name == "p50" else "", ms, _quantiles(theirs)[name], len(ours.good)
        )


def _row(what: str, goal: str, ours: float, theirs: float, runs: int) -> tuple[str, ...]:
    shown = (f"{ours:.1f}", f"{theirs:.1f}", f"{_ratio(ours, theirs):.2f}", str(runs))
    return (what, goal, *shown)


def _costs(found: Found, size: Size) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("work", "process", "ms", "per", "share of a core")]
    for transfer in found.transfers:
        for side in (OURS, THEIRS):
            spent = transfer.spent[side]
            rows += _cost_rows(transfer.name, spent, spent.moved / 1e6, "MB")
    for side in (OURS, THEIRS):
        connections = len(found.parallels[side]) * size.clients
        rows += _cost_rows(
            f"{size.clients} parallel clients",
            found.parallel_spent[side],
            connections,
            "connection",
        )
    return rows


def _cost_rows(what: str, spent: Spent, count: float, unit: str) -> Iterable[tuple[str, ...]]:
    for process, seconds in spent.cpu_s.items():
        share = f"{100 * seconds / spent.wall_s:.0f} %"
        yield (what, process, f"{1000 * seconds / count:.2f}", unit, share)
