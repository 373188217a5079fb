"""Servers of node, Java, Go and Mono that count requests, with timers, threads and garbage.

Each answers `GET /` with a JSON object: `pid`, `nonce` (random, in memory), `count` (of requests),
`ticks` (of a timer) and `work` (of its threads).
"""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

from tests.integration.boxd.suspension.programs.load import (
    ANSWER_TIMEOUT,
    Load,
    output,
    program,
    source,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PORT = 8090
CONNECTIONS = 3


class Client:
    """A connection that stays open."""

    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=ANSWER_TIMEOUT)
        self._connection.connect()
        self._connection.auto_open = 0

    def get(self) -> dict[str, Any]:
        """Return the server's state."""
        self._connection.request("GET", "/")
        answer: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return answer


def counter(load: Load, pid: int) -> Iterator[None]:
    """Check that requests, timers and threads of a server go on from where they were."""
    load.wait(Client)
    clients = [Client() for _ in range(CONNECTIONS)]
    last = clients[0].get()
    if last["pid"] != pid:
        raise RuntimeError(f"process {last['pid']} answers, not {pid}")
    while True:
        for client in clients:
            state = client.get()
            if (state["pid"], state["nonce"]) != (pid, last["nonce"]):
                raise RuntimeError(f"another process answers: {state}, {last}")
            if state["count"] != last["count"] + 1:
                raise RuntimeError(f"a request was lost: {state}, {last}")
            last = state
        before = last

        def goes_on(before: dict[str, Any] = before) -> bool:
            nonlocal last
            last = clients[0].get()
            return all(last[name] > before[name] for name in ("ticks", "work"))

        until(goes_on)
        yield


@program("node")
def node(load: Load) -> Iterator[None]:
    """An HTTP server with timers, a worker thread, a file watch and a child process."""
    load.version = output("node", "--version")
    yield from counter(load, load.start("node", "node", source("server.js"), str(PORT)))


@program("java")
def java(load: Load) -> Iterator[None]:
    """An HTTP server with a scheduled executor, four threads and the G1 collector."""
    load.version = output("java", "-version").splitlines()[0]
    options = ("-Xmx256m", "-XX:+UseG1GC")
    yield from counter(load, load.start("java", "java", *options, source("Server.java"), str(PORT)))


@program("go")
def go(load: Load) -> Iterator[None]:
    """An HTTP server with a ticker and goroutines that produce garbage."""
    load.version = output("/root/server", "version")
    yield from counter(load, load.start("go", "/root/server", str(PORT)))


@program("mono")
def mono(load: Load) -> Iterator[None]:
    """An HTTP server with a timer and four threads, in C#."""
    load.version = output("mono", "--version").splitlines()[0]
    output("mcs", "-out:/root/Server.exe", source("Server.cs"))
    yield from counter(load, load.start("mono", "mono", "/root/Server.exe", str(PORT)))
