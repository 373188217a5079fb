"""Two boxes of two owners: one attacks, and the test measures the other."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from base64 import b64decode
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.harness.service.processes import memory_of_service
from tests.harness.service.user import SSH, User

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

SAMPLES = 100
"""Number of execs in each half of a turn."""
CHUNK = 10
TURNS = 2
TRIALS = 3
"""Trials of a measurement. Beside a fork bomb, one of twenty fails on two processors
(`bundle.CPU_PERIOD_US`): each refused fork has copied its address space first, under locks of
files that the systems of both boxes share."""
RECOVERY_S = 60.0
"""Maximum wait in seconds for a box after an attack from inside; in practice it is far shorter."""


class Pair:
    """Box `a`, which attacks, and box `b`, its neighbour, of another owner."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon = daemon
        for name in ("attacker", "victim"):
            (folder / name).mkdir()
        self.attacker = User(daemon, folder / "attacker")
        self.victim = User(daemon, folder / "victim")
        self.attacker.ssh("a", "true")
        self.victim.ssh("b", "true")
        self.key = self.victim.ssh("cli", "apikeys create exec")

    @contextmanager
    def attack(self, program: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a Python program in box `a` within the context; it must not end by itself."""
        with self.session(f"exec python3 -I - <<'END'\n{program}END\n") as running:
            yield running

    @contextmanager
    def session(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Open an SSH session to box `a` whose output no client reads."""
        port = str(self.daemon.ssh_port)
        running = subprocess.Popen(
            [*SSH, "-i", str(self.attacker.key), "-p", port, "a@127.0.0.1", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield running
        finally:
            with suppress(ProcessLookupError):  # A box may have killed itself.
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            assert running.stdout is not None
            running.stdout.close()

    def times(self, count: int = SAMPLES) -> list[float]:
        """Return the seconds of each of `count` execs in box `b`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.api_port, timeout=60)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "text/plain"}
        found = []
        try:
            for _ in range(count):
                began = time.monotonic()
                connection.request("POST", "/v1/exec/b?stream=false", b"echo ok", headers)
                answer = json.loads(connection.getresponse().read())
                found.append(time.monotonic() - began)
                assert (answer["exit_code"], b64decode(answer["stdout"])) == (0, b"ok\n")
        finally:
            connection.close()
        return found

    def times_beside(self, program: str) -> list[float]:
        """Return the same beside an attack, which restarts if it kills its own box."""
        found: list[float] = []
        while len(found) < SAMPLES:
            with self.attack(program) as running:
                while running.poll() is None and len(found) < SAMPLES:
                    found += self.times(CHUNK)
            self.recovers()
        return found

    def p99s(self, program: str) -> tuple[float, float]:
        """Return the 99th percentile in seconds of quiet execs, and of execs beside the attack."""
        quiet, loud = self.times(), []
        for _ in range(TURNS):
            loud += self.times_beside(program)
            quiet += self.times()
        return p99(quiet), p99(loud)

    def recovers(self) -> None:
        """Wait until box `a` is usable after its attack, and free the attack's memory."""
        tidy = "rm -rf /dev/shm/* /run/fill /dev/fill; ipcrm --all; echo ok"
        deadline = time.monotonic() + RECOVERY_S
        while True:
            try:
                assert self.attacker.ssh("a", tidy) == "ok"
            except AssertionError:
                assert time.monotonic() < deadline
                continue
            return

    def rss(self) -> int:
        """Return the bytes of the daemon's memory."""
        assert self.daemon.process is not None
        return memory_of_service(self.daemon.process.pid)


def p99(times: list[float]) -> float:
    """Return the 99th percentile of at least a hundred times."""
    return sorted(times)[len(times) * 99 // 100]


@pytest.fixture(scope="module")
def pair(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return a `Pair` of the daemon."""
    return Pair(daemon, tmp_path_factory.mktemp("users"))
