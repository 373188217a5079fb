"""Measures MCP over each transport: `python -m benchmarks.mcp [--quick]`.

Runs on its own service with one box and one client. Writes `mcp.json` and `mcp.md` into
`benchmarks/results`. They contain the milliseconds of tool calls, alternating between persistent
connections, and of a push. A push lasts from the answer to a call that changes the fleet until the
notification on another connection. This includes the 250 ms in which changes are collected. Run it
on an otherwise idle machine.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from websockets.sync.client import connect

from benchmarks.boxes.measure import CALM, complain
from benchmarks.http.client import Client
from benchmarks.latency import Times
from benchmarks.report import asked, machine, markdown, write
from tests.e2e.service import Person, Service

if TYPE_CHECKING:
    from collections.abc import Iterator

BOX = "live"
PATIENCE_S = 30.0
LEGACY, MODERN = "2025-11-25", "2026-07-28"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "fleet": ("fleet", {}),
    "box_exec": ("box_exec", {"box": BOX, "cmd": "true"}),
    "wrk_read": ("wrk_read", {"path": "here"}),
}


class Door(Protocol):
    """An MCP connection."""

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request; return the answer."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Text:
    """A connection of text messages after its handshake.

    `told` contains the methods of notifications.
    """

    def __init__(self) -> None:
        self.told: list[str] = []
        self._numbers = count(1)

    def send(self, text: str) -> None:
        """Send a message."""
        raise NotImplementedError

    def receive(self) -> str:
        """Return the next message."""
        raise NotImplementedError

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request; return the answer."""
        number = next(self._numbers)
        self.send(_request(number, method, params))
        while (message := self.next()).get("id") != number:
            self.told.append(str(message["method"]))
        return message

    def next(self) -> dict[str, Any]:
        """Return the next message, parsed."""
        found: dict[str, Any] = json.loads(self.receive())
        return found

    def shake_hands(self) -> None:
        """Do the handshake of MCP."""
        who = {"name": "bench", "version": "1"}
        begin = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": who}
        self.ask("initialize", begin)
        self.send('{"jsonrpc": "2.0", "method": "notifications/initialized"}')


class Socket(Text):
    """A connection over WebSocket."""

    def __init__(self, port: int, key: str) -> None:
        super().__init__()
        self._stack = ExitStack()
        made = connect(f"ws://127.0.0.1:{port}/v1/mcp?key={key}", max_size=None)
        self._socket = self._stack.enter_context(made)
        self.shake_hands()

    def send(self, text: str) -> None:
        """Send a message."""
        self._socket.send(text)

    def receive(self) -> str:
        """Return the next message."""
        return str(self._socket.recv(PATIENCE_S))

    def close(self) -> None:
        """Close the connection."""
        self._stack.close()


class Lines(Text):
    """A stdio connection through ssh."""

    def __init__(self, person: Person) -> None:
        super().__init__()
        self._program = subprocess.Popen(
            person.ssh_command("cli", "mcp"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.shake_hands()

    def send(self, text: str) -> None:
        """Send a message."""
        assert self._program.stdin is not None
        self._program.stdin.write(text + "\n")
        self._program.stdin.flush()

    def receive(self) -> str:
        """Return the next message."""
        assert self._program.stdout is not None
        return self._program.stdout.readline()

    def close(self) -> None:
        """End the program."""
        self._program.communicate()


class Posts:
    """Single HTTP requests over a persistent connection."""

    def __init__(self, port: int, key: str) -> None:
        self._client = Client(port, key)

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request; return the answer."""
        body = _request(1, method, params | {"_meta": ENVELOPE}).encode()
        lines = [
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            f"Mcp-Protocol-Version: {MODERN}",
            f"Mcp-Method: {method}",
            f"Mcp-Name: {params['name']}",
        ]
        found: dict[str, Any] = json.loads(
            self._client.request("POST", "/v1/mcp", body, *lines).body
        )
        return found

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _request(number: int, method: str, params: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def main() -> None:
    """Measure and report."""
    quick, to = asked("mcp")
    facts = machine()
    rounds = 20 if quick else 300
    with served() as (service, person):
        key = person.new_key("bench")
        person.run(BOX, "echo here > /wrk/here")
        found = measure(service, person, key, rounds)
    rows: list[tuple[str, ...]] = [("Call", "Transport", "p50 ms", "p95 ms", "p99 ms", "Succeeded")]
    for name, times in found.items():
        work, _, door = name.partition(" ")
        rows.append(times.row(work, door))
    result = {"machine": facts} | {name: times.figures() for name, times in found.items()}
    write(to, "mcp", ["# MCP", "", *markdown(rows, 2)], result)


@contextmanager
def served() -> Iterator[tuple[Service, Person]]:
    """Yield a service with one user."""
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as directory:
        service = Service(Path(directory) / "state", CALM)
        try:
            service.start()
            yield service, Person(service, Path(directory) / "home")
        finally:
            service.close()
            complain(service)


def measure(service: Service, person: Person, key: str, rounds: int) -> dict[str, Times]:
    """Measure all calls, alternating between the transports."""
    with ExitStack() as stack:
        doors: dict[str, Door] = {
            "websocket": Socket(service.api_port, key),
            "http": Posts(service.api_port, key),
            "stdio": Lines(person),
        }
        for door in doors.values():
            stack.callback(door.close)
        found = {f"{work} {door}": Times() for work in CALLS for door in doors}
        for _ in range(rounds):
            for work, (tool, arguments) in CALLS.items():
                for name, door in doors.items():
                    call(door, tool, arguments, found[f"{work} {name}"])
        other = Socket(service.api_port, key)
        stack.callback(other.close)
        found["push websocket"] = pushes(doors["http"], other, min(rounds, 100))
    return found


def call(door: Door, tool: str, arguments: dict[str, Any], times: Times) -> None:
    """Make a call and add its time."""
    times.attempts += 1
    begun = time.perf_counter()
    answer = door.ask("tools/call", {"name": tool, "arguments": arguments})
    spent = (time.perf_counter() - begun) * 1000
    if answer.get("result", {}).get("isError") is not True and "result" in answer:
        times.good.append(spent)
    else:
        times.refused = json.dumps(answer)[:200]


def pushes(acts: Door, hears: Socket, rounds: int) -> Times:
    """Measure the pushes of consecutive changes of the fleet."""
    times = Times()
    hears.ask("resources/subscribe", {"uri": "svc://fleet"})
    for number in range(rounds):
        times.attempts += 1
        acts.ask("tools/call", {"name": "box_pin", "arguments": {"box": BOX, "for_s": number + 60}})
        begun = time.perf_counter()
        while hears.next().get("method") != "notifications/resources/updated":
            pass
        times.good.append((time.perf_counter() - begun) * 1000)
    return times


if __name__ == "__main__":
    main()
