"""L2: a restart of the service loses no box, no key and no deadline; sessions drop at most once.

It is ended in an orderly way and by SIGKILL while people work in boxes.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.counter import COUNTER, counter
from tests.harness.service.user import User

if TYPE_CHECKING:
    from tests.harness.service.daemon import Daemon
    from tests.plugins.figures import Figures

AWAKE = ("one", "two")
KEPT = ("id", "deadline", "created", "image", "grace")


class Worker(threading.Thread):
    """Runs commands in a box, one after another, until it is told to stop."""

    def __init__(self, user: User, box: str) -> None:
        super().__init__()
        self._user, self._box = user, box
        self._end = threading.Event()
        self.done = 0
        self.dropped = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        """A command that comes back answers wholly; one that does not was dropped."""
        number = 0
        while not self._end.is_set():
            number += 1
            command = self._user.command(self._box, f"echo begin; sleep 0.1; echo {number}")
            asked = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if asked.returncode == 0:
                self.done += 1
                if asked.stdout != f"begin\n{number}\n":
                    self.wrong.append(asked.stdout)
            elif asked.returncode == 255:
                self.dropped += 1
                self._end.wait(0.1)
            else:
                self.wrong.append(f"status {asked.returncode}: {asked.stderr}")

    def stop(self) -> None:
        """Returns after its last command."""
        self._end.set()
        self.join()


def drives(daemon: Daemon) -> list[str]:
    """Where drives are mounted on the host."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return sorted(line.split()[4] for line in mounts if f"{daemon.state}/mounts/" in line)


def further(workers: list[Worker], reached: list[int]) -> bool:
    """Whether each of them did more than that."""
    return all(worker.done > was for worker, was in zip(workers, reached, strict=True))


@pytest.mark.figure("RESTART")
@pytest.mark.promise("L2")
@pytest.mark.timeout(600)
def test_restarts_under_load(daemon: Daemon, tmp_path: Path, figures: Figures) -> None:
    user = User(daemon, tmp_path)
    for box in (*AWAKE, "asleep"):
        user.ssh(f"{box}^{len(box)}d+1h", COUNTER)
    key = user.ssh("cli", "apikeys create laptop")
    user.ssh("one", "echo mine >/wrk/file")
    who = {box: counter(user, box)[0] for box in (*AWAKE, "asleep")}
    until(lambda: user.boxes()["asleep"]["attached"] == 0)
    assert "suspended" in user.ssh("cli", "suspend asleep")

    def kept() -> dict[str, dict[str, object]]:
        return {name: {word: box.get(word) for word in KEPT} for name, box in user.boxes().items()}

    before = kept()
    mounts = drives(daemon)
    for number in figures(ci=2, long=40):
        held = subprocess.Popen(
            user.command("two", "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        workers = [Worker(user, box) for box in AWAKE]
        for worker in workers:
            worker.start()
        until(partial(further, workers, [0, 0]), 60)
        daemon.end(signal.SIGKILL if number % 2 else signal.SIGTERM)
        assert held.wait(60) == 255
        held.communicate()
        done = [worker.done + 1 for worker in workers]
        daemon.start()
        until(partial(further, workers, done), 60)
        dropped = [worker.dropped for worker in workers]
        for worker in workers:
            worker.stop()
            assert worker.wrong == []
        # Nothing drops once the service is there again.
        assert [worker.dropped for worker in workers] == dropped
        assert kept() == before
        sleeper = user.boxes()["asleep"]
        assert (sleeper["state"], sleeper["memory"]) == ("suspended", True)
        assert user.get(key, "/v1/wrk/file") == (200, b"mine\n")
        for name in AWAKE:
            assert counter(user, name)[0] == who[name]
        assert drives(daemon) == mounts
    assert counter(user, "asleep")[0] == who["asleep"]
