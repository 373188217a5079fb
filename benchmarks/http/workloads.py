"""The operations of the HTTP benchmark, alternating between the API and its references."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.http.client import HOST, Client
from benchmarks.latency import Times, measured
from tests.harness.service.processes import processor_of_service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.http.drive import InProcess

TEXT = "Content-Type: text/plain"
PIECE = 1 << 20
PARALLEL = 8
"""Parallel clients in the measurement of requests per second."""
LISTED = 200


@dataclass(frozen=True)
class Size:
    """The amount of work."""

    requests: int
    warm: int
    bytes: int
    transfers: int
    seconds: float
    """Duration of the measurement of requests per second."""


FULL, QUICK = Size(300, 20, 256 << 20, 5, 3.0), Size(30, 3, 48 << 20, 3, 0.5)


@dataclass(frozen=True)
class Target:
    """A running service. The owner of `key` has a box named `box` with an app."""

    port: int
    key: str
    box: str
    daemon: int
    inside: int
    """A process in the box."""
    app: int
    """The port of `benchmarks.http.app` in the box."""
    files: int
    """The port of `python3 -m http.server` there, with a file `data` of `Size.bytes`."""
    preview: str
    """A host name that /v1/tls-ask accepts."""
    mount: Path
    """The host's mount of the box's drive."""
    drive: InProcess

    def client(self) -> Client:
        """Return a connection to the API."""
        return Client(self.port, self.key)


@dataclass
class Rates:
    """A kind of transfer: MB/s (10^6 bytes) by side, and the processor time of the daemon."""

    name: str
    ours: str
    """The side over HTTP."""
    rates: dict[str, list[float]] = field(default_factory=dict)
    daemon_s: float = 0.0
    moved: int = 0

    def median(self, side: str) -> float:
        """Return the median rate of a side in MB/s."""
        return statistics.median(self.rates[side])

    def ratio(self, side: str) -> float:
        """Return the ratio of our median to that of `side`."""
        return self.median(self.ours) / self.median(side)


@dataclass
class Found:
    """All measurements."""

    times: dict[str, Times]
    transfers: dict[str, Rates]
    per_second: dict[str, float]


def measure(target: Target, size: Size) -> Found:
    """Measure everything. Raises RuntimeError for a wrong answer."""
    transfers = {**drive(target, size), **download(target, size), **streams(target, size)}
    return Found(latencies(target, size), transfers, rates(target, size))


# --- times --------------------------------------------------------------------------------------


def latencies(target: Target, size: Size) -> dict[str, Times]:
    """Measure each request by itself, with one client."""
    client = target.client()
    direct = Client(target.app, namespace=target.inside)
    proxied = f"/v1/boxes/{target.box}/proxy/{target.app}/small"
    asked = f"/v1/tls-ask?domain={target.preview}"
    works: dict[str, Callable[[], bool]] = {
        "exec_ms": partial(buffered, client, target.box),
        "exec_stream_ms": partial(streamed, client, target.box),
        "exec_new_connection_ms": partial(anew, target),
        "list_200_ms": partial(listed, client),
        "tls_ask_ms": lambda: client.request("GET", asked).status == 200,
        "wrk_get_small_ms": partial(small_file, client),
        "direct_small_ms": lambda: direct.request("GET", "/small").body == b"ok",
        "proxy_small_ms": lambda: client.request("GET", proxied).body == b"ok",
    }
    client.request("PUT", "/v1/wrk/small", b"small")
    found = {name: Times() for name in works}
    for name, work in works.items():
        measured(Times(), size.warm, work)
        measured(found[name], size.requests, work)
    client.close()
    direct.close()
    return found


def buffered(client: Client, box: str) -> bool:
    """Run `true` with a buffered answer."""
    reply = client.request("POST", f"/v1/exec/{box}?stream=false", b"true", TEXT)
    return reply.status == 200 and json.loads(reply.body)["exit_code"] == 0


def streamed(client: Client, box: str) -> bool:
    """Run `true` with a streamed answer."""
    reply = client.request("POST", f"/v1/exec/{box}", b"true", TEXT)
    return reply.body == b'event: exit\ndata: {"code": 0}\n\n'


def anew(target: Target) -> bool:
    """Run `true` on a new connection, as curl does."""
    client = target.client()
    try:
        return buffered(client, target.box)
    finally:
        client.close()


def listed(client: Client) -> bool:
    """List all boxes of the owner."""
    return len(json.loads(client.request("GET", "/v1/boxes").body)) == LISTED


def small_file(client: Client) -> bool:
    """Read a small file."""
    return client.request("GET", "/v1/wrk/small").body == b"small"


# --- throughput ---------------------------------------------------------------------------------


def drive(target: Target, size: Size) -> dict[str, Rates]:
    """Write and read a file on each side. The reader has never read the file before."""
    client, data = target.client(), material(size.bytes)
    puts: dict[str, Callable[[str], None]] = {
        "http": lambda name: put(client, f"/v1/wrk/{name}", data),
        "mount": lambda name: write(target.mount / name, data),
        "in process": lambda name: target.drive.put(name, data),
    }
    gets: dict[str, Callable[[str], None]] = {
        "http": lambda name: get(client, f"/v1/wrk/{name}", size.bytes),
        "mount": lambda name: read(target.mount / name, size.bytes),
        "in process": lambda name: target.drive.get(name, size.bytes),
    }
    names = list(puts)
    written = Rates("PUT /v1/wrk", "http", {name: [] for name in names})
    got = Rates("GET /v1/wrk", "http", {name: [] for name in names})
    for run in range(-1, size.transfers):
        order = names[run % 3 :] + names[: run % 3]
        for name in order:
            add(written, target, name, partial(puts[name], f"f{name}"), size.bytes, counts=run >= 0)
        for name in order:
            other = names[(names.index(name) + 1) % 3]
            add(got, target, name, partial(gets[name], f"f{other}"), size.bytes, counts=run >= 0)
        for name in names:
            client.request("DELETE", f"/v1/wrk/f{name}".replace(" ", "%20"))
    client.close()
    return {"wrk_put": written, "wrk_get": got}


def download(target: Target, size: Size) -> dict[str, Rates]:
    """Download a file of a standard server in the box with curl, with and without the proxy."""
    name = "curl of a file of http.server in the box"
    rates = Rates(name, "proxy", {"proxy": [], "direct": []})
    within = ["nsenter", f"--net=/proc/{target.inside}/ns/net"]
    ours = f"http://{HOST}:{target.port}/v1/boxes/{target.box}/proxy/{target.files}/data"
    sides = {
        "proxy": partial(fetch, [], ours, size.bytes, target.key),
        "direct": partial(fetch, within, f"http://{HOST}:{target.files}/data", size.bytes),
    }
    for run in range(-1, size.transfers):
        for side in sorted(sides, reverse=bool(run % 2)):
            add(rates, target, side, sides[side], size.bytes, counts=run >= 0)
    return {"proxy": rates}


def fetch(within: list[str], url: str, size: int, key: str = "") -> float:
    """Download with curl and discard the body; return curl's own time in seconds."""
    told = 'output = "/dev/null"\nwrite-out = "%{http_code} %{size_download} %{time_total}"\n'
    told += f'header = "Authorization: Bearer {key}"\n' if key else ""
    command = [*within, "curl", "-sS", "-K", "-", url]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=True)
    status, moved, seconds = done.stdout.split()
    if (status, int(moved)) != ("200", size):
        raise RuntimeError(f"{url}: {done.stdout}")
    return float(seconds)


def streams(target: Target, size: Size) -> dict[str, Rates]:
    """Transfer a body from and to `benchmarks.http.app`, with the proxy and without.

    Both ends only send and receive, so the difference is the cost of the proxy.
    """
    client = target.client()
    direct = Client(target.app, namespace=target.inside)
    prefix = f"/v1/boxes/{target.box}/proxy/{target.app}"
    data = material(size.bytes)
    sides: dict[str, tuple[Client, str]] = {"proxy": (client, prefix), "direct": (direct, "")}
    down = Rates("bare bytes from the box", "proxy", {name: [] for name in sides})
    up = Rates("bare bytes to the box", "proxy", {name: [] for name in sides})
    for run in range(-1, size.transfers):
        for name in sorted(sides, reverse=bool(run % 2)):
            one, before = sides[name]
            pull = partial(get, one, f"{before}/{size.bytes}", size.bytes)
            add(down, target, name, pull, size.bytes, counts=run >= 0)
            push = partial(send, one, f"{before}/", data)
            add(up, target, name, push, size.bytes, counts=run >= 0)
    client.close()
    direct.close()
    return {"proxy_bare": down, "proxy_bare_upload": up}


def add(
    rates: Rates,
    target: Target,
    side: str,
    work: Callable[[], float | None],
    moved: int,
    *,
    counts: bool,
) -> None:
    """Do a transfer and add its rate. `work` may return its duration. A warm-up does not count."""
    before, start = processor_of_service(target.daemon), time.perf_counter()
    told = work()
    seconds = time.perf_counter() - start if told is None else told
    if not counts:
        return
    rates.rates[side].append(moved / seconds / 1e6)
    if side == rates.ours:
        rates.daemon_s += processor_of_service(target.daemon) - before
        rates.moved += moved


def rates(target: Target, size: Size) -> dict[str, float]:
    """Return the requests per second of several clients, by kind."""
    proxied = f"/v1/boxes/{target.box}/proxy/{target.app}/small"
    kinds: dict[str, Callable[[Client], bool]] = {
        "exec": partial(buffered, box=target.box),
        "boxes": listed,
        "wrk_get_small": small_file,
        "proxy": lambda client: client.request("GET", proxied).body == b"ok",
    }
    found = {}
    for name, ask in kinds.items():
        with ThreadPoolExecutor(PARALLEL) as pool:
            counts = pool.map(
                partial(count, ask, size.seconds), (target.client() for _ in range(PARALLEL))
            )
            found[name] = sum(counts) / size.seconds
    return found


def count(ask: Callable[[Client], bool], seconds: float, client: Client) -> int:
    """Repeat a request for `seconds`; return the number of requests."""
    end, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        if not ask(client):
            raise RuntimeError("a request returned a wrong answer")
        done += 1
    client.close()
    return done


# --- transfers ----------------------------------------------------------------------------------


def material(size: int) -> bytes:
    """Return incompressible bytes."""
    return os.urandom(PIECE) * (size // PIECE)


def put(client: Client, path: str, data: bytes) -> None:
    """Write a file over HTTP."""
    status = client.request("PUT", path.replace(" ", "%20"), memoryview(data)).status
    if status not in {201, 204}:
        raise RuntimeError(f"PUT {path}: {status}")


def get(client: Client, path: str, size: int) -> None:
    """Read and discard a body over HTTP."""
    reply = client.request("GET", path.replace(" ", "%20"), keep=False)
    if (reply.status, reply.size) != (200, size):
        raise RuntimeError(f"GET {path}: {reply.status}, {reply.size} bytes")


def send(client: Client, path: str, data: bytes) -> None:
    """Send a body to the app."""
    if client.request("PUT", path, memoryview(data)).body != b"%d" % len(data):
        raise RuntimeError(f"PUT {path}: the app did not receive the body")


def write(path: Path, data: bytes) -> None:
    """Write a file durably through the mount."""
    view = memoryview(data)
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(data), PIECE):
            file.write(view[start : start + PIECE])
        os.fsync(file.fileno())


def read(path: Path, size: int) -> None:
    """Read and discard a file through the mount."""
    buffer, left = bytearray(PIECE), size
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            left -= count
    if left:
        raise RuntimeError(f"{path}: {left} bytes are missing")
