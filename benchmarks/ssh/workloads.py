"""The operations of the SSH benchmark: the same client alternates between two servers."""

from __future__ import annotations

import filecmp
import os
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.latency import Times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

HOST = "127.0.0.1"
RUN_S = 120.0
"""Time limit of a client's command, in seconds."""
OWN: tuple[str, ...] = ()
"""Client and server negotiate the algorithms."""
PINNED = ("-oKexAlgorithms=curve25519-sha256", "-oCiphers=chacha20-poly1305@openssh.com")
"""The algorithms that a default client negotiates with boxd.

With sshd, it would negotiate a key exchange that takes much longer.
"""
GCM = ("-oKexAlgorithms=curve25519-sha256", "-oCiphers=aes128-gcm@openssh.com")


@dataclass(frozen=True)
class Size:
    """The amount of work."""

    connects: int
    warm: int
    bytes: int
    transfers: int
    parallels: int
    own: int
    """Connections with negotiated algorithms."""
    clients: int = 100
    """Parallel clients."""


FULL, QUICK = Size(100, 5, 256 << 20, 5, 3, 25), Size(3, 1, 16 << 20, 3, 1, 3)


@dataclass(frozen=True)
class Side:
    """A server, as a client reaches it.

    `place` is a directory there. `meters` return the total processor time of its processes, in
    seconds.
    """

    name: str
    port: int
    user: str
    place: str
    options: Sequence[str]
    meters: Mapping[str, Callable[[], float]]

    def ssh(self, options: Sequence[str], command: str) -> list[str]:
        """Return the command line of `ssh`."""
        return ["ssh", *self.options, *options, f"-p{self.port}", f"{self.user}@{HOST}", command]

    def run(self, command: str) -> bytes:
        """Run a command there; return its output. Raises RuntimeError if it fails."""
        return _run(self.ssh(PINNED, command))

    def path(self, name: str) -> str:
        """Return the name of a file there for scp."""
        return f"{self.user}@{HOST}:{self.place}/{name}"


@dataclass
class Spent:
    """The elapsed time and the processor time of some work in seconds, and the bytes it moved."""

    wall_s: float = 0.0
    moved: int = 0
    cpu_s: dict[str, float] = field(default_factory=dict)

    def add(self, side: Side, work: Callable[[], object], moved: int = 0) -> float:
        """Do the work and add its times; return the elapsed time in seconds."""
        before = {name: meter() for name, meter in side.meters.items()}
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        for name, meter in side.meters.items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + meter() - before[name]
        self.wall_s += seconds
        self.moved += moved
        return seconds


@dataclass
class Connects:
    """Milliseconds of a side until the first byte of output, and until the end of the client."""

    first: Times = field(default_factory=Times)
    whole: Times = field(default_factory=Times)


@dataclass
class Transfer:
    """A way to transfer the file. `rates` are MB/s (10^6 bytes), by side, as is `spent`."""

    name: str
    options: Sequence[str]
    words: Callable[[Side, Path], list[str]]
    upload: bool = False
    key: str = ""
    """The key in the JSON; "" if it is not included."""
    rates: dict[str, list[float]] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=dict)

    def median(self, side: str) -> float:
        """Return the median rate of a side in MB/s."""
        return statistics.median(self.rates[side])


@dataclass
class Found:
    """All measurements. `connects` is by algorithms, then by side."""

    connects: dict[str, dict[str, Connects]]
    transfers: list[Transfer]
    parallels: dict[str, list[float]]
    parallel_spent: dict[str, Spent]


class Limit:
    """Limits the number of runs when the time is up. Each row has at least one run."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def runs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the runs."""
        for run in range(count):
            if run and time.monotonic() > self._end:
                return
            yield run


def measure(sides: Sequence[Side], size: Size, local: Path, limit: Limit) -> Found:
    """Measure everything. `local` is a directory for the client's files, best in memory.

    Raises RuntimeError for a failure or a wrong result.
    """
    prepare(sides, size, local)
    return Found(
        {
            "pinned": connects(sides, size.connects, size.warm, PINNED, limit),
            "own": connects(sides, size.own, size.warm, OWN, limit),
        },
        [move(sides, size, local, transfer, limit) for transfer in _transfers()],
        *parallels(sides, size, limit),
    )


def prepare(sides: Sequence[Side], size: Size, local: Path) -> None:
    """Create the file locally and on both servers."""
    data = local / "data"
    with data.open("wb") as file:
        for _ in range(size.bytes >> 20):
            file.write(os.urandom(1 << 20))
    for side in sides:
        _run(["scp", *side.options, *PINNED, f"-P{side.port}", str(data), side.path("data")])


def connects(
    sides: Sequence[Side], runs: int, warm: int, options: Sequence[str], limit: Limit
) -> dict[str, Connects]:
    """Measure consecutive connections."""
    found = {side.name: Connects() for side in sides}
    for _ in range(warm):
        for side in sides:
            _connect(side.ssh(options, "echo x"), Connects())
    for run in limit.runs(runs):
        for side in _by_turns(sides, run):
            _connect(side.ssh(options, "echo x"), found[side.name])
    return found


def _connect(command: list[str], found: Connects) -> None:
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as client:
        assert client.stdout is not None
        output = os.read(client.stdout.fileno(), 1)
        first = time.perf_counter() - start
        rest, errors = client.communicate(timeout=RUN_S)
        whole = time.perf_counter() - start
    if client.returncode != 0 or output + rest != b"x\n":
        raise RuntimeError(f"{command}: {output + rest!r} {errors.decode(errors='replace')}")
    for times, seconds in ((found.first, first), (found.whole, whole)):
        times.attempts += 1
        times.good.append(seconds * 1000)


def _transfers() -> list[Transfer]:
    def down(side: Side, local: Path) -> list[str]:
        return ["scp", f"-P{side.port}", side.path("data"), str(local / "got")]

    def up(side: Side, local: Path) -> list[str]:
        return ["scp", f"-P{side.port}", str(local / "data"), side.path("up")]

    def old_down(side: Side, local: Path) -> list[str]:
        return ["scp", "-O", *down(side, local)[1:]]

    def old_up(side: Side, local: Path) -> list[str]:
        return ["scp", "-O", *up(side, local)[1:]]

    def sftp(side: Side, local: Path) -> list[str]:
        batch = local / f"batch.{side.name}"
        batch.write_text(f"get {side.place}/data {local / 'got'}\n")
        return ["sftp", "-q", "-b", str(batch), f"-P{side.port}", f"{side.user}@{HOST}"]

    return [
        Transfer("scp download", PINNED, down, key="download_MBps"),
        Transfer("scp upload", PINNED, up, upload=True, key="upload_MBps"),
        Transfer("sftp get", PINNED, sftp, key="sftp_get_MBps"),
        Transfer("scp -O download", PINNED, old_down),
        Transfer("scp -O upload", PINNED, old_up, upload=True),
        Transfer("scp download, aes128-gcm", GCM, down),
        Transfer("scp upload, aes128-gcm", GCM, up, upload=True),
    ]


def move(
    sides: Sequence[Side], size: Size, local: Path, transfer: Transfer, limit: Limit
) -> Transfer:
    """Repeat a transfer of the file; return it with its results."""
    for side in sides:
        transfer.rates[side.name], transfer.spent[side.name] = [], Spent()
    for run in limit.runs(size.transfers):
        for side in _by_turns(sides, run):
            (local / "got").unlink(missing_ok=True)
            program, *words = transfer.words(side, local)
            command = [program, *side.options, *transfer.options, *words]
            seconds = transfer.spent[side.name].add(side, partial(_run, command), size.bytes)
            transfer.rates[side.name].append(size.bytes / seconds / 1e6)
            if run == 0 and not _arrived(side, local, upload=transfer.upload):
                raise RuntimeError(f"{transfer.name}: the file differs after {side.name} moved it")
    return transfer


def _arrived(side: Side, local: Path, *, upload: bool) -> bool:
    if upload:
        return side.run(f"cd {side.place} && cmp data up && rm up && echo same") == b"same\n"
    return filecmp.cmp(local / "data", local / "got", shallow=False)


def parallels(
    sides: Sequence[Side], size: Size, limit: Limit
) -> tuple[dict[str, list[float]], dict[str, Spent]]:
    """Start many clients at once; return the seconds until the last has ended, and the costs."""
    found: dict[str, list[float]] = {side.name: [] for side in sides}
    spent = {side.name: Spent() for side in sides}
    for run in limit.runs(size.parallels):
        for side in _by_turns(sides, run):
            commands = [side.ssh(PINNED, f"echo {number}") for number in range(size.clients)]
            seconds = spent[side.name].add(side, partial(_run_all, commands))
            found[side.name].append(seconds)
    return found, spent


def _run_all(commands: Sequence[list[str]]) -> None:
    """Run the commands in parallel. Each must print its number."""
    pipe = subprocess.PIPE
    clients = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        for command in commands
    ]
    try:
        for number, client in enumerate(clients):
            output, errors = client.communicate(timeout=RUN_S)
            if client.returncode != 0 or output != f"{number}\n".encode():
                raise RuntimeError(f"client {number}: {output!r} {errors.decode(errors='replace')}")
    finally:
        for client in clients:
            client.kill()
            client.communicate()


def _by_turns(sides: Sequence[Side], run: int) -> Sequence[Side]:
    """Return the sides in an order that alternates between runs."""
    return sides if run % 2 == 0 else sides[::-1]


def _run(command: list[str]) -> bytes:
    """Run a client; return its output. Raises RuntimeError if it fails."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.decode(errors='replace')}")
    return done.stdout
