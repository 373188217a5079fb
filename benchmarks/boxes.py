"""Latencies of boxes: `python -m benchmarks.boxes [--runs N]` on a service of its own.

Writes `benchmarks/results/boxes.json` and `boxes.md`: p50, p95, p99 in milliseconds, success rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import machine, save
from tests.e2e.service import Person, Service

if TYPE_CHECKING:
    from collections.abc import Callable


BATCH = 15
"""New boxes at a time; below the tier's limit of running ones."""


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.boxes")
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        directory = Path(name)
        service = Service(directory / "state")
        try:
            found = measure(service, Person(service, directory / "home"), runs)
        finally:
            service.close()
    report(found, runs)


def measure(service: Service, person: Person, runs: int) -> dict[str, list[float]]:
    """Milliseconds by work; a failed attempt is missing from the list."""
    service.start()
    person.run("live", "true")
    key = person.new_key("bench")
    text = {"Content-Type": "text/plain"}

    def over_http() -> bool:
        path = "/v1/exec/live?stream=false"
        answer = service.http("POST", path, key=key, body=b"true", headers=text)
        return answer.status == 200 and json.loads(answer.body)["exit_code"] == 0

    def boxes_list() -> bool:
        return service.http("GET", "/v1/boxes", key=key).status == 200

    numbers = iter(range(10 * runs))

    def over_new_ssh() -> bool:
        name = f"new{next(numbers)}"
        started = person.ssh(name, "true").returncode == 0
        made.append(name)
        return started

    def destroy() -> bool:
        return person.ssh("cli", "rm", made.pop()).returncode == 0

    made: list[str] = []
    found = {
        "HTTP exec `true`, live box": times(runs, over_http),
        "ssh `true`, live box": times(runs, lambda: person.ssh("live", "true").returncode == 0),
        "GET /v1/boxes": times(runs, boxes_list),
        "ssh `true`, new box with /wrk": [],
        "ssh cli rm": [],
    }
    for start in range(0, runs, BATCH):
        batch = min(BATCH, runs - start)
        found["ssh `true`, new box with /wrk"] += times(batch, over_new_ssh)
        found["ssh cli rm"] += times(batch, destroy)
    service.interrupt()
    found["`make up` again, until both doors answer"] = times(1, lambda: _start(service))
    return found


def _start(service: Service) -> bool:
    service.start()
    return True


def times(runs: int, work: Callable[[], bool]) -> list[float]:
    """Milliseconds of the attempts that succeeded."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        succeeded = work()
        if succeeded:
            found.append((time.perf_counter() - start) * 1000)
    return found


def percentile(values: list[float], percent: int) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * len(ordered)))]


def report(found: dict[str, list[float]], runs: int) -> None:
    """Prints the table and writes both files."""
    version = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    rows = [("what", "p50 ms", "p95 ms", "p99 ms", "succeeded")]
    works = {}
    for name, values in found.items():
        if not values:
            print(f"no attempt succeeded: {name}", file=sys.stderr)
            continue
        p50, p95, p99 = statistics.median(values), percentile(values, 95), percentile(values, 99)
        works[name] = {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "succeeded": len(values)}
        rows.append((name, f"{p50:.1f}", f"{p95:.1f}", f"{p99:.1f}", str(len(values))))
    title = f"Boxes: {runs} attempts each, one client, {version.split(',')[0].strip()}"
    save("boxes", title, rows, {"machine": machine(), "runs": runs, "works": works})


if __name__ == "__main__":
    main()
