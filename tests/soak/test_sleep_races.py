"""SLEEP: a box is suspended and woken again and again, also while people connect to it.

Whoever connects always comes through, into a box that has its memory: one that was woken, or was
never suspended because they came in time.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.counter import COUNTER, LOOK, counter
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon
    from tests.plugins.figures import Figures

pytestmark = [pytest.mark.figure("SLEEP"), pytest.mark.timeout(600)]

SHORT, LONG = 0.3, 1.5
"""Seconds: the longest rest between two orders, and longer than a suspension takes."""


@pytest.fixture
def user(daemon: Daemon, tmp_path: Path) -> User:
    """A user of the daemon, whose box `dev` counts."""
    user = User(daemon, tmp_path)
    user.ssh("dev", COUNTER)
    return user


def unbroken(user: User) -> None:
    """Every tick stands once, and in its order, in the file that the counter has open."""
    wrong = "awk '$1 != NR { print NR \": \" $0; exit }' /wrk/open"
    assert user.ssh("dev", wrong) == ""
    user.ssh("cli", "rm dev")


def test_again_and_again(user: User, figures: Figures) -> None:
    who, reached = counter(user, "dev")
    for seed in figures(ci=10, long=100):
        chance = random.Random(seed)
        time.sleep(chance.uniform(0, SHORT))
        assert "suspended" in user.ssh("cli", "suspend dev")
        time.sleep(chance.uniform(0, SHORT))
        again, ticks = counter(user, "dev")
        assert again == who
        assert ticks >= reached
        reached = ticks
        box = user.boxes()["dev"]
        assert (box["state"], box["detail"]) == ("running", ""), user.daemon.log.read_text()
        until(lambda: user.boxes()["dev"]["attached"] == 0)
    unbroken(user)


def test_a_connection_comes_through_at_any_moment(user: User, figures: Figures) -> None:
    """Three of them, at random moments of a suspension that was asked for."""
    who, reached = counter(user, "dev")
    ends = set()
    for seed in figures(ci=6, long=200):
        chance = random.Random(seed)
        until(lambda: user.boxes()["dev"]["attached"] == 0)
        suspending = started(user, "cli", "suspend dev")
        people = []
        for rest in sorted(chance.uniform(0, LONG / 3) for _ in range(3)):
            time.sleep(rest)
            people.append(started(user, "dev", LOOK))
        seen = []
        for one in people:
            out, err = one.communicate(timeout=120)
            assert one.returncode == 0, err + user.daemon.log.read_text()
            again, ticks = out.splitlines()
            assert again == who
            seen.append(int(ticks))
        # They look beside each other, whoever came first.
        assert min(seen) >= reached
        reached = max(seen)
        _, err = suspending.communicate(timeout=120)
        assert suspending.returncode == 0 or "in use" in err, err
        ends.add(suspending.returncode)
        assert user.boxes()["dev"]["detail"] == ""
    assert ends, "no round was made"
    unbroken(user)


def test_a_command_that_runs_is_named_and_goes_on(
    daemon: Daemon, user: User, figures: Figures
) -> None:
    key = user.ssh("cli", "apikeys create laptop")
    for seed in figures(ci=1, long=20):
        rest = random.Random(seed).uniform(0, 1)
        until_told = "until rm /root/go 2>/dev/null; do sleep 0.05; done"
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(executed, user, key, f"{until_told}; echo whole")
            try:
                until(lambda: user.boxes()["dev"]["attached"] == 1)
                time.sleep(rest)
                refusal = user.ssh("cli", "suspend dev", status=1)
            finally:
                user.ssh("dev", "touch /root/go")
        assert "box dev is in use (1 exec)" in refusal
        assert answer.result() == (200, b"whole\n")
        until(lambda: user.boxes()["dev"]["attached"] == 0)
    unbroken(user)


def started(user: User, who: str, command: str) -> subprocess.Popen[str]:
    """An OpenSSH client that is on its way."""
    return subprocess.Popen(
        user.command(who, command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def executed(user: User, key: str, command: str) -> tuple[int, bytes]:
    """Status and output of a command over HTTP."""
    path = "/v1/exec/dev?stream=false"
    status, answer = user.http("POST", key, path, command.encode(), timeout=60)
    return status, base64.b64decode(json.loads(answer)["stdout"])
