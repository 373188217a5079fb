"""Boxes of the whole service go to sleep with their memory: asked to, by themselves, with it."""

from __future__ import annotations

import json
import signal
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.adoption import SLEEPS
from tests.harness.mounts.drive import until
from tests.harness.service.counter import COUNTER, counter, ticks_on
from tests.harness.service.daemon import open_daemon
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def user(daemon: Daemon, tmp_path: Path) -> User:
    """A user of the daemon."""
    return User(daemon, tmp_path)


def state(user: User, ref: str) -> tuple[object, object]:
    """Of a box: its state, and whether it sleeps with its memory."""
    box = user.boxes()[ref]
    return box["state"], box["memory"]


def test_a_box_wakes_as_the_same_one(daemon: Daemon, user: User) -> None:
    user.ssh("dev", COUNTER)
    for _ in range(3):
        who, ticks = counter(user, "dev")
        assert "suspended" in user.ssh("cli", "suspend dev")
        assert state(user, "dev") == ("suspended", True)
        now, later = counter(user, "dev")
        assert now == who
        assert later >= ticks
        assert state(user, "dev") == ("running", False)
        until(partial(ticks_on, user, later))
        assert int(user.ssh("dev", "tail -n 1 /wrk/open")) > ticks
    assert user.boxes()["dev"]["detail"] == ""


def test_a_sleeper_outlives_its_daemons(daemon: Daemon, user: User) -> None:
    user.ssh("dev", COUNTER)
    who, _ = counter(user, "dev")
    user.ssh("cli", "suspend dev")
    for end in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        daemon.end(end)
        daemon.start()
        assert state(user, "dev") == ("suspended", True)
    assert counter(user, "dev")[0] == who


def test_boxes_sleep_while_the_service_is_down(daemon: Daemon, user: User) -> None:
    user.ssh("dev", COUNTER)
    who, _ = counter(user, "dev")
    daemon.end(signal.SIGINT)
    assert daemon.left_overs() == []
    daemon.start()
    assert user.boxes()["dev"]["detail"] == SLEEPS
    assert counter(user, "dev")[0] == who


def test_a_box_in_use_is_not_suspended_and_an_unused_one_wakes_for_http(
    daemon: Daemon, user: User
) -> None:
    held = subprocess.Popen(user.command("dev", "echo up; read line"), stdin=subprocess.PIPE)
    try:
        until(lambda: user.boxes().get("dev", {}).get("attached") == 1)
        assert "box dev is in use (1 " in user.ssh("cli", "suspend dev", status=1)
    finally:
        held.communicate(b"\n", timeout=60)
    until(lambda: user.boxes()["dev"]["attached"] == 0)
    assert "suspended" in user.ssh("cli", "suspend dev")
    assert "suspended" in user.ssh("cli", "suspend dev")
    assert "running" in user.ssh("cli", "resume dev")
    assert state(user, "dev") == ("running", False)


def test_a_snapshot_is_brought_back_and_forked(daemon: Daemon, user: User) -> None:
    user.ssh("base", COUNTER + "echo one >/root/file")
    who, _ = counter(user, "base")
    user.ssh("cli", "snapshot create base good")
    user.ssh("base", "echo two >/root/file")
    fork = user.ssh("cli", "snapshot fork base 'kid^1h'")
    assert "running" in fork
    assert counter(user, "kid")[0] == counter(user, "base")[0] == who
    assert user.ssh("kid", "hostname; cat /root/file") == "kid\ntwo"
    user.ssh("cli", "snapshot restore base good")
    assert user.ssh("base", "hostname; cat /root/file") == "base\none"
    assert counter(user, "base")[0] == who
    assert user.ssh("kid", "cat /root/file") == "two"
    assert user.boxes()["base"]["detail"] == user.boxes()["kid"]["detail"] == ""


def test_a_profile_is_built_of_a_box(daemon: Daemon, user: User) -> None:
    user.ssh("maker", COUNTER + "echo built >/root/file")
    assert "lab" in user.ssh("cli", "profiles build lab --from maker")
    [kept] = json.loads(user.ssh("cli", "snapshot ls maker --json"))
    assert (kept["memory"], kept["box_removed"]) == (False, False)
    user.ssh("maker", "echo later >/root/file")
    # The disk as it was, and none of the processes.
    assert user.ssh("made:lab", "hostname; cat /root/file") == "made\nbuilt"
    assert user.ssh("made", "grep -ls count.s[h] /proc/[0-9]*/cmdline || true") == ""
    assert user.ssh("maker", "grep -ls count.s[h] /proc/[0-9]*/cmdline") != ""
    user.ssh("cli", "profiles rm lab")
    assert user.ssh("made", "cat /root/file") == "built"


def test_a_box_that_nobody_uses_sleeps_and_goes(image_rootfs: Path, tmp_path: Path) -> None:
    flags = ("--idle-timeout", "2s", "--idle-reap", "5s")
    with open_daemon(image_rootfs, flags=flags) as daemon:
        user = User(daemon, tmp_path)
        user.ssh("dev", COUNTER)
        seen: list[tuple[object, object]] = []

        def sleeps() -> bool:
            seen.append(state(user, "dev"))
            return seen[-1][0] == "suspended"

        until(sleeps)
        assert seen[-1] == ("suspended", True)
        until(lambda: user.boxes() == {})
        until(lambda: not any(path.is_dir() for path in daemon.boxes()))
