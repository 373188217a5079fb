"""Measures calls of four clients on two mounts that change one directory.

`python -m benchmarks.drive.contention [--calls N]` prints percentiles by call. For the longest
calls it prints the requests to the mount, and the causes of their waits (`benchmarks.drive.waits`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.latency import Times
from benchmarks.peers.ours import Ours
from benchmarks.stores import stores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.synchronize import Barrier

CLIENTS = 4
NAMES = 12
"""Number of names that all clients share."""
LONGEST = 12
"""Number of calls that are explained."""
ROOT = Path(__file__).parents[2]


class Recorded(Ours):
    """Our mount, with a record of its requests."""

    def command(self) -> Sequence[str]:
        """Return the command of the recording mount."""
        words = list(super().command())
        at = words.index("box_guest.mount")
        words[at : at + 1] = ["benchmarks.drive.waits", str(self.record)]
        return words

    def environment(self) -> Mapping[str, str]:
        """Return the environment, with the path of this package."""
        return {**super().environment(), "PYTHONPATH": str(ROOT)}

    @property
    def record(self) -> Path:
        """The file with a line per request. It is complete when the mount has ended."""
        return self._log.with_suffix(".waits")


@dataclass(frozen=True)
class Call:
    """A call of a client. Times are seconds of CLOCK_MONOTONIC."""

    verb: str
    pid: int
    mount: int
    began: float
    ended: float


def client(number: int, directory: Path, calls: int, start: Barrier, out: Path) -> None:
    """Make random calls in the directory, and record their times. Runs as a process."""
    rng, made = random.Random(number), []
    start.wait()
    for turn in range(calls):
        verb, work = _work(rng, directory, f"{number}-{turn}")
        began = time.monotonic()
        with suppress(FileExistsError, FileNotFoundError, OSError):
            work()
        made.append((verb, os.getpid(), number % 2, began, time.monotonic()))
    out.write_text(json.dumps(made))


def _work(rng: random.Random, directory: Path, own: str) -> tuple[str, Any]:
    name, other = (directory / f"n{rng.randrange(NAMES)}" for _ in range(2))
    folder = directory / f"d{rng.randrange(NAMES)}"

    def half() -> None:
        with os.scandir(directory) as entries:
            next(entries, None)

    verbs: dict[str, Any] = {
        "create": lambda: name.touch(),
        "write": lambda: name.write_bytes(own.encode()),
        "rename": lambda: name.rename(other),
        "unlink": lambda: name.unlink(),
        "mkdir": lambda: folder.mkdir(),
        "rmdir": lambda: folder.rmdir(),
        "list": lambda: os.listdir(directory),
        "stat": lambda: name.stat(),
        "walk": lambda: [entry.stat() for entry in os.scandir(directory)],
        "half a list": half,
    }
    verb = rng.choice(list(verbs))
    return verb, verbs[verb]


def measure(calls: int) -> tuple[list[Call], list[list[dict[str, Any]]]]:
    """Return the calls of all clients, and the requests of both mounts."""
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        place = Path(name)
        with stores(place / "stores") as where:
            volume = where.volume()
            mounts = [Recorded(volume, place, f"ours{number}") for number in range(2)]
            try:
                for mount in mounts:
                    mount.mount()
                (mounts[0].path / "d").mkdir()
                found = _run([mount.path / "d" for mount in mounts], calls, place)
            finally:
                for mount in mounts:
                    mount.unmount()
            records = [mount.record.read_text().splitlines() for mount in mounts]
    return found, [[json.loads(line) for line in lines] for lines in records]


def _run(directories: Sequence[Path], calls: int, place: Path) -> list[Call]:
    """Run all clients at once."""
    start = multiprocessing.Barrier(CLIENTS)
    outs = [place / f"client{number}" for number in range(CLIENTS)]
    clients = [
        multiprocessing.Process(
            target=client, args=(number, directories[number % len(directories)], calls, start, out)
        )
        for number, out in enumerate(outs)
    ]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return [Call(*call) for out in outs for call in json.loads(out.read_text())]


def tell(calls: Sequence[Call], requests: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Print percentiles, and the waits of the longest calls."""
    times: defaultdict[str, Times] = defaultdict(Times)
    for call in calls:
        times[call.verb].good.append(1000 * (call.ended - call.began))
    print(f"{'call':12} {'count':>6} {'p50':>8} {'p95':>8} {'p99':>8} {'max':>8}  ms")
    for verb, of_verb in sorted(times.items()):
        shown = (of_verb.percentile(percent) or 0.0 for percent in (50, 95, 99, 100))
        print(f"{verb:12} {len(of_verb.good):6}", *(f"{ms:8.1f}" for ms in shown))
    for call in sorted(calls, key=lambda one: one.began - one.ended)[:LONGEST]:
        print(f"\n{call.verb} {1000 * (call.ended - call.began):.1f} ms, mount {call.mount}")
        for mount, served in enumerate(requests):
            for request in served:
                if _concerns(request, mount, call):
                    print("  ", _line(request, mount, call))


def _concerns(request: dict[str, Any], mount: int, call: Call) -> bool:
    """Return whether a request of over 1 ms may be part of a call, or may have delayed it."""
    own = mount == call.mount and request["pid"] in (call.pid, 0)
    meanwhile = request["ended"] > call.began and request["began"] < call.ended
    long = request["ended"] - request["began"] > 0.001
    return meanwhile and long and (own or request["name"].startswith("("))


def _line(request: dict[str, Any], mount: int, call: Call) -> str:
    waits = {cause: round(1000 * found, 1) for cause, found in request.items() if " " in cause}
    began, took = request["began"] - call.began, request["ended"] - request["began"]
    name = request["name"]
    return f"mount {mount} {name:10} at {1000 * began:8.1f} took {1000 * took:8.1f} ms {waits}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drive.contention")
    parser.add_argument("--calls", type=int, default=500, help="calls per client (default: 500)")
    tell(*measure(parser.parse_args().calls))


if __name__ == "__main__":
    main()
