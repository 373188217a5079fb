"""Reports the figures of the HTTP API: JSON for programs, tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.report import markdown, revision, write

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.http.workloads import Found, Rates, Size
    from benchmarks.latency import Times

GOALS = {
    "exec_ms": "p50 <= 30 (goal 15), p99 <= 5 times p50",
    "list_200_ms": "<= 20",
    "tls_ask_ms": "<= 5",
    "wrk_get_ratio": ">= 0.8",
    "wrk_put_ratio": ">= 0.8",
    "proxy_ratio": ">= 0.5",
    "proxy_added_ms": "<= 5",
}
WHAT = {
    "exec_ms": "exec of `true`, buffered",
    "exec_stream_ms": "exec of `true`, stream",
    "exec_new_connection_ms": "exec of `true`, buffered, new connection",
    "list_200_ms": "GET /v1/boxes, 200 boxes",
    "tls_ask_ms": "GET /v1/tls-ask",
    "wrk_get_small_ms": "GET /v1/wrk of 5 bytes",
    "direct_small_ms": "GET of 2 bytes from an app in the box, without the proxy",
    "proxy_small_ms": "the same with the proxy",
}
THEIRS = {"wrk_put": "mount", "wrk_get": "mount", "proxy": "direct"}
THEIRS |= {"proxy_bare": "direct", "proxy_bare_upload": "direct"}
"""The main reference of each transfer over HTTP."""
NOTE = (
    "ratio: rate over HTTP / rate of the reference, from the medians of one run. `mount`: the mount"
    " of boxes, with fsync; a file is read for the first time there. `in process`: the operations"
    " below the API, called directly. `direct`: the same client in the network of the box."
    " Bare bytes: both ends only send and receive, so the difference is the cost of the proxy."
)


def report(found: Found, size: Size, facts: dict[str, object], to: Path) -> None:
    """Print the tables and write both files."""
    told = ", ".join(f"{name} {value}" for name, value in {**facts, **revision()}.items())
    lines = [
        f"The HTTP API: {size.requests} requests of each kind by one client,"
        f" {size.transfers} transfers of {size.bytes >> 20} MiB, medians",
        "",
        *markdown(_time_rows(found.times), left=2),
        "",
        f"Added by the proxy: {_added(found)} ms at the p50 (goal {GOALS['proxy_added_ms']}).",
        "",
        *markdown(_rate_rows(found.transfers), left=3),
        "",
        NOTE,
        "",
        "Requests per second of 8 clients: "
        + ", ".join(f"{name} {rate:.0f}" for name, rate in found.per_second.items())
        + ".",
        "",
        f"Machine: {told}",
    ]
    write(to, "http", lines, figures(found))


def figures(found: Found) -> dict[str, object]:
    """Return the content of the JSON file."""
    told: dict[str, object] = {name: times.figures() for name, times in found.times.items()}
    for name, rates in found.transfers.items():
        told[f"{name}_ratio"] = round(rates.ratio(THEIRS[name]), 3)
        told[f"{name}_MBps"] = {side: round(rates.median(side), 1) for side in rates.rates}
        if "in process" in rates.rates:
            told[f"{name}_in_process_ratio"] = round(rates.ratio("in process"), 3)
    told["proxy_added_ms"] = _added(found)
    told["per_second"] = {name: round(rate) for name, rate in found.per_second.items()}
    return told


def _added(found: Found) -> float:
    ours, theirs = (found.times[f"{side}_small_ms"].percentile(50) for side in ("proxy", "direct"))
    if ours is None or theirs is None:
        raise RuntimeError("no request to the app succeeded")
    return round(ours - theirs, 2)


def _time_rows(times: dict[str, Times]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("request", "goal", "p50 ms", "p95 ms", "p99 ms", "succeeded")]
    rows += [one.row(WHAT[name], GOALS.get(name, "")) for name, one in times.items()]
    return rows


def _rate_rows(transfers: dict[str, Rates]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("transfer", "reference", "goal", "HTTP MB/s", "reference MB/s", "ratio", "daemon s/GB")
    ]
    for name, rates in transfers.items():
        for side in rates.rates:
            if side == rates.ours:
                continue
            goal = GOALS.get(f"{name}_ratio", "") if side == THEIRS[name] else ""
            numbers = (rates.median(rates.ours), rates.median(side))
            shown = (*(f"{one:.0f}" for one in numbers), f"{rates.ratio(side):.2f}")
            spent = f"{rates.daemon_s / rates.moved * 1e9:.2f}"
            rows.append((rates.name, side, goal, *shown, spent))
    return rows
