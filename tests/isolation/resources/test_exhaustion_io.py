"""A box that writes without end, to its disk and to its drive: the neighbour's drive goes on.

As in `test_exhaustion` the neighbour is timed in turns with and without the attack, in one run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.harness.service.pair import CHUNK, SAMPLES, TRIALS, TURNS, p99, pair

if TYPE_CHECKING:
    from tests.harness.service.pair import Pair

__all__ = ["pair"]

RATIO = 5.0
FLOOR_S = 0.050
"""A quiet p99 below it is taken for it: a write waits for disk, database and object server."""

ATTACKS = {
    "its disk": """
import os
block = bytes(1 << 20)
while True:
    file = os.open("/root/fill", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for _ in range(256):
        os.write(file, block)
    os.fsync(file)
    os.close(file)
""",
    "its drive": """
import os
block = bytes(1 << 20)
for number in range(4):
    if os.fork() == 0:
        while True:
            file = os.open(f"/wrk/fill{number}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            for _ in range(64):
                os.write(file, block)
            os.fsync(file)
            os.close(file)
os.wait()
""",
    "files of its drive": """
import os
for number in range(8):
    if os.fork() == 0:
        os.makedirs(f"/wrk/many{number}", exist_ok=True)
        count = 0
        while True:
            count = (count + 1) % 1000
            file = os.open(f"/wrk/many{number}/{count}", os.O_CREAT | os.O_WRONLY)
            os.write(file, b"x")
            os.close(file)
os.wait()
""",
}
WRITES = """
import json, os, time
found = []
for number in range({count}):
    began = time.monotonic()
    file = os.open("/wrk/timed", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.write(file, bytes(4096))
    os.fsync(file)
    os.close(file)
    found.append(time.monotonic() - began)
print(json.dumps(found))
"""


def drive_times(pair: Pair, count: int) -> list[float]:
    """Seconds of each of so many durable writes on the neighbour's drive."""
    program = WRITES.format(count=count)
    found: list[float] = json.loads(pair.victim.ssh("b", f"python3 -I - <<'END'\n{program}END\n"))
    return found


def drive_p99s(pair: Pair, attack: str) -> tuple[float, float]:
    """Seconds: of quiet writes, and of those beside the attack."""
    quiet, loud = drive_times(pair, SAMPLES), []
    for _ in range(TURNS):
        with pair.attack(ATTACKS[attack]) as running:
            for _ in range(SAMPLES // CHUNK):
                loud += drive_times(pair, CHUNK)
                assert running.poll() is None
        pair.recovers()
        quiet += drive_times(pair, SAMPLES)
    return p99(quiet), p99(loud)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_neighbours_drive_goes_on(pair: Pair, attack: str) -> None:
    found = []
    for _ in range(TRIALS):
        quiet, loud = drive_p99s(pair, attack)
        if loud <= RATIO * max(quiet, FLOOR_S):
            return
        found.append(f"{1000 * loud:.0f} ms by {1000 * quiet:.0f}")
    raise AssertionError(f"p99 of writes beside {attack}, by the quiet one: {', '.join(found)}")
