"""Two mounts alternate in one directory: one creates a file, the other calls stat."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SHARED = "ping-pong"


def ping_pong(one: Path, other: Path, rounds: int) -> dict[str, Any]:
    """Return milliseconds; `stale` counts stats that did not find the new file. Raises OSError."""
    (one / SHARED).mkdir()
    os.listdir(other / SHARED)
    creations, looks = [], []
    stale = 0
    for number in range(rounds):
        maker, looker = (one, other) if number % 2 == 0 else (other, one)
        name = f"{SHARED}/file{number}"
        start = time.perf_counter()
        os.close(os.open(maker / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        made = time.perf_counter()
        try:
            os.stat(looker / name)
        except FileNotFoundError:
            stale += 1
        looks.append(1000 * (time.perf_counter() - made))
        creations.append(1000 * (made - start))
    both = sorted(a + b for a, b in zip(creations, looks, strict=True))
    return {
        "rounds": rounds,
        "create_p50_ms": statistics.median(creations),
        "stat_p50_ms": statistics.median(looks),
        "hand_off_p50_ms": statistics.median(both),
        "hand_off_p95_ms": both[min(len(both) - 1, round(0.95 * len(both)))],
        "stale": stale,
    }
