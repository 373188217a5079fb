"""Boxes that wait for an owner: they become ordinary boxes, and nobody's twins."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.daemon import installation
from tests.harness.service.user import User

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)
CLAIMED = "prepared box claimed"
WHO = """
hostname
sha256sum </run/box/host_key
head -c 16 /dev/urandom | sha256sum
hostname -I
cat /etc/hostname
awk '/127.0.1.1/ { print $2 }' /etc/hosts
ls /wrk >/dev/null && echo drive
box-guest info | grep ^name
"""


@pytest.fixture
def user(image_rootfs: Path, tmp_path: Path) -> Iterator[User]:
    """A user of a daemon that prepares one box, and has a template."""
    with installation(image_rootfs) as daemon:
        daemon.prepared = 1
        daemon.start()
        user = User(daemon, tmp_path)
        user.ssh("booted", "true")
        until(lambda: "created a template of image debian" in daemon.log.read_text())
        user.ssh("copied", "true")
        yield user


def directories(daemon: Daemon) -> list[Path]:
    """Return the directories of boxes with and without a row."""
    return [path for path in daemon.boxes() if path.is_dir()]


def waits(daemon: Daemon, number: int) -> None:
    """Wait until this many boxes were prepared since the start of the daemon."""
    until(lambda: daemon.log.read_text().count("prepared a box of image debian") >= number)


def claim(user: User, name: str) -> list[str]:
    """Create a box from the next prepared one; return what it says about itself."""
    count = user.daemon.log.read_text().count(CLAIMED)
    waits(user.daemon, count + 1)
    lines = user.ssh(name, WHO).splitlines()
    assert user.daemon.log.read_text().count(CLAIMED) == count + 1, user.daemon.log.read_text()
    return lines


def test_claimed_boxes_are_like_all_others(user: User) -> None:
    one, two = claim(user, "one"), claim(user, "two")
    assert (one[0], two[0]) == (one[4], two[4]) == (one[5], two[5]) == ("one", "two")
    for place in (1, 2, 3):
        assert one[place] != two[place]
    assert one[6] == two[6] == "drive"
    assert "one" in one[7]
    assert all(box["detail"] == "" for box in user.boxes().values())
    user.ssh("one", "echo mine >/root/file")
    assert "suspended" in user.ssh("cli", "suspend one")
    assert user.ssh("one", "cat /root/file; hostname").split() == ["mine", "one"]
    user.ssh("cli", "snapshot fork one three")
    assert user.ssh("three", "cat /root/file; hostname").split() == ["mine", "three"]
    user.ssh("cli", "rm two")
    assert "two" not in user.boxes()


def test_boxes_of_other_kinds_are_not_claimed(user: User) -> None:
    waits(user.daemon, 1)
    user.ssh("cli", "up big:debian:large")
    assert CLAIMED not in user.daemon.log.read_text()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_no_prepared_box_outlives_its_daemon(user: User, end: signal.Signals) -> None:
    daemon = user.daemon
    waits(daemon, 1)
    assert len(directories(daemon)) == 3
    daemon.end(end)
    if end is signal.SIGTERM:
        assert len(directories(daemon)) == 2
    daemon.prepared = 0
    daemon.start()
    assert len(directories(daemon)) == 2
    assert set(user.boxes()) == {"booted", "copied"}


def test_a_refused_request_leaves_nothing_of_a_prepared_box(user: User) -> None:
    """Too many boxes run, so the request fails after the daemon has chosen a prepared box."""
    daemon = user.daemon
    waits(daemon, 1)
    daemon.end(signal.SIGTERM)
    daemon.flags += ["--max-running", "3"]
    daemon.start()
    user.ssh("third", "true")
    waits(daemon, 1)
    assert "limit reached: 3 running boxes" in user.ssh("cli", "up fourth", status=1)
    until(lambda: len(directories(daemon)) == 3)
    user.ssh("cli", "rm third")
    user.ssh("third", "true")
    assert user.ssh("third", "hostname") == "third"
