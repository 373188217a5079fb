"""Each process of the service dies alone, under load: nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest

from boxd.privileged.supervision import RESTARTS_MAX
from tests.harness.mounts.drive import until
from tests.harness.service.daemon import Daemon, open_daemon
from tests.harness.service.user import User, user

__all__ = ["user"]

pytestmark = pytest.mark.timeout(300)
KILLS = 3
SERVED_S = 60.0
"""Seconds within which the service must answer again."""


def process(daemon: Daemon, name: str) -> int:
    """Return the pid of a process that the first one has forked; 0 if there is none."""
    assert daemon.process is not None
    first = Path("/proc", str(daemon.process.pid))
    for child in (first / "task" / first.name / "children").read_text().split():
        try:
            if Path(f"/proc/{child}/comm").read_text() == f"boxd-{name}\n":
                return int(child)
        except FileNotFoundError:
            continue
    return 0


def kill(pid: int) -> None:
    """Kill a process, never a group of processes."""
    assert pid > 0
    os.kill(pid, signal.SIGKILL)


def has_another(daemon: Daemon, name: str, pid: int) -> bool:
    """Return whether a new process has taken the place of `pid`."""
    return process(daemon, name) not in (0, pid)


class Load:
    """Writes numbered files over HTTP, and remembers those that were acknowledged."""

    def __init__(self, someone: User, key: str) -> None:
        self.acknowledged: list[int] = []
        self.failed = 0
        self._user, self._key = someone, key
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            try:
                status = self._user.put(self._key, f"/v1/wrk/load/{number}", b"%d" % number)
            except OSError:
                status = 0
            if status in (200, 201, 204):
                self.acknowledged.append(number)
            else:
                self.failed += 1
                self._over.wait(0.01)


def grows(load: Load) -> None:
    """Wait until another write is acknowledged."""
    before = len(load.acknowledged)
    until(lambda: len(load.acknowledged) > before, SERVED_S)


@pytest.mark.parametrize("name", ["front", "helper"])
def test_a_killed_process_starts_again(daemon: Daemon, user: User, name: str) -> None:
    user.ssh("dev", "echo one >/wrk/one; echo two >/root/two; nohup sleep 100000 >/dev/null 2>&1 &")
    box = user.boxes()["dev"]["id"]
    key = user.ssh("cli", "apikeys create laptop")
    assert daemon.process is not None
    first = daemon.process.pid
    with Load(user, key) as load:
        for _ in range(KILLS):
            grows(load)
            pid = process(daemon, name)
            other = process(daemon, "helper")
            kill(pid)
            until(partial(has_another, daemon, name, pid), SERVED_S)
            grows(load)
            if name == "front":
                assert process(daemon, "helper") == other
    assert load.acknowledged
    assert daemon.process.pid == first
    assert daemon.process.poll() is None
    for number in load.acknowledged:
        assert user.get(key, f"/v1/wrk/load/{number}") == (200, b"%d" % number)
    assert user.boxes()["dev"]["id"] == box
    assert user.ssh("dev", "cat /wrk/one /root/two; pgrep -c sleep") == "one\ntwo\n1"
    # It still stops and starts as before.
    pids = [process(daemon, "front"), process(daemon, "helper")]
    daemon.end(signal.SIGTERM)
    assert not any(map(runs, pids))
    daemon.start()
    assert user.ssh("dev", "cat /root/two") == "two"


def test_connections_wait_for_the_next_front(daemon: Daemon, user: User) -> None:
    user.ssh("dev", "true")
    kill(process(daemon, "front"))
    # No connection is refused: the kernel keeps it for the next front.
    assert user.ssh("dev", "echo here") == "here"


def test_nothing_is_left_of_a_killed_first_process(daemon: Daemon, user: User) -> None:
    user.ssh("dev", "echo two >/root/two")
    names = ("front", "helper")
    pids = [process(daemon, name) for name in names]
    daemon.end(signal.SIGKILL)
    assert not any(map(runs, pids))
    daemon.start()
    assert user.ssh("dev", "cat /root/two") == "two"


def test_a_service_that_dies_again_and_again_gives_up(image_rootfs: Path) -> None:
    with open_daemon(image_rootfs) as alone:
        first = alone.process
        assert first is not None
        seen = {0}

        def ended() -> bool:
            pid = 0 if first.poll() is not None else process(alone, "front")
            if pid not in seen:
                kill(pid)
                seen.add(pid)
            return first.poll() is not None

        until(ended, 200)
        assert first.wait(0) == 1
        text = alone.log.read_text()
        assert text.count("another one starts") == RESTARTS_MAX + 1
        assert "too many restarts; the service ends" in text
        alone.process = None


def test_a_port_that_only_root_may_have(image_rootfs: Path) -> None:
    with open_daemon(image_rootfs, flags=["--preview-domain", "preview.internal"]) as alone:
        alone.end(signal.SIGINT)
        alone.addresses = ("127.0.0.1:122", "127.0.0.1:180")
        alone.start()
        assert (alone.ssh_port, alone.api_port) == (122, 180)
        kill(process(alone, "front"))
        for port in (122, 180):
            subprocess.run(
                ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo >&3; head -c 4 <&3"],
                check=True,
                timeout=60,
            )


def runs(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
