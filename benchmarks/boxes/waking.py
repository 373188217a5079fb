"""Measures how boxes wake: with more and more memory, and many at once."""

from __future__ import annotations

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from benchmarks.boxes.costs import Costs, Peak
from benchmarks.boxes.measure import ROOMY, TEXT, Bench
from benchmarks.latency import Times, measured

MIB = 1 << 20
MARK = "/tmp/mark"
"""A file in the box with the pid of a process that must survive."""
START = f"setsid sleep infinity </dev/null >/dev/null 2>&1 & echo $! >{MARK}"
START_S = 30.0
"""Seconds until it must run."""
CHECK = f'[ "$(cat /proc/$(cat {MARK})/comm)" = sleep ] && echo same'


def mark(bench: Bench, box: str) -> str:
    """Start the process that must survive; return why it does not run, or ""."""
    why = _answer(bench, box, START)[1]
    end = time.monotonic() + START_S
    while not why and loss(bench, box):
        if time.monotonic() > end:
            return f"the process in box {box} has not started in time"
        time.sleep(0.02)
    return why


def loss(bench: Bench, box: str) -> str:
    """Return "" if that process still runs, else what is wrong. Wakes the box."""
    output, why = _answer(bench, box, CHECK)
    return why or ("" if output.strip() == "same" else f"box {box} has lost its process")


def _answer(bench: Bench, box: str, command: str) -> tuple[str, str]:
    """Run a command; return its output, and the error of the service if it did not run."""
    answer = bench.service.http(
        "POST",
        f"/v1/exec/{box}?stream=false",
        key=bench.key,
        body=command.encode(),
        headers=TEXT,
    )
    if answer.status != 200:
        return "", f"box {box}: {answer.status} {answer.error}"
    return base64.b64decode(json.loads(answer.body)["stdout"]).decode(), ""


@dataclass
class Size:
    """Times of a box whose process uses this many MiB."""

    mib: int
    suspend: Times = field(default_factory=Times)
    wake: Times = field(default_factory=Times)
    """From the request for a command until its answer, which shows that the process survived."""

    def figures(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {
            "mib": self.mib,
            "suspend_ms": self.suspend.figures(),
            "wake_ms": self.wake.figures(),
        }


def by_memory(bench: Bench, sizes: tuple[int, ...], runs: int) -> list[Size]:
    """Measure suspensions and wakes of one box for each amount of memory."""
    found = []
    for mib in sizes:
        size = Size(mib)
        box = f"held{mib}"
        if not bench.over_ssh(f"{box}:{ROOMY}"):
            raise RuntimeError(f"the box for {mib} MiB does not start")
        bench.hold_memory(box, mib * MIB)
        for _ in range(runs):
            measured(size.suspend, 1, partial(bench.fell_asleep, box))
            measured(size.wake, 1, partial(bench.lives, box))
        bench.person.ssh("cli", "rm", box)
        found.append(size)
    return found


@dataclass
class Rush:
    """Boxes that were all woken at the same moment."""

    times: Times
    seconds: float
    peak: float
    """MiB by which the memory use of the host grew at most, for each box."""
    cost: dict[str, float]
    """MiB for each box afterwards, compared with the sleeping boxes."""
    lost: list[str]
    """For each box that did not answer, or whose process is gone, what is wrong."""

    def figures(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {
            "boxes": self.times.attempts,
            "first_answer_ms": {
                **self.times.figures(),
                "max": round(max(self.times.good, default=0), 2),
            },
            "all_s": round(self.seconds, 2),
            "host_peak_mib_per_box": round(self.peak, 1),
            "mib_per_box": self.cost,
            "lost": self.lost,
        }


def rush(boxes: list[tuple[Bench, str]], before: Costs) -> Rush:
    """Send a command to each of the sleeping boxes at the same moment."""
    gate = threading.Barrier(len(boxes))

    def wake(bench: Bench, box: str) -> tuple[Times, str]:
        mine, why = Times(), ["the request failed"]

        def work() -> bool:
            why[0] = loss(bench, box)
            return not why[0]

        gate.wait()
        measured(mine, 1, work)
        return mine, why[0]

    with Peak() as peak, ThreadPoolExecutor(len(boxes)) as pool:
        start = time.monotonic()
        waking = [pool.submit(wake, bench, box) for bench, box in boxes]
        answers = [answer.result() for answer in waking]
        seconds = time.monotonic() - start
    times = Times(len(answers), [one for mine, _ in answers for one in mine.good])
    lost = [why for _, why in answers if why]
    after = Costs.of(boxes[0][0].service)
    number = len(boxes)
    return Rush(
        times, seconds, (peak.host - before.host) / number, after.per_box(before, number), lost
    )
