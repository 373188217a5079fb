"""Unused boxes of a whole service are removed; durable ones are not, even after a restart."""

from __future__ import annotations

import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.daemon import open_daemon
from tests.harness.service.user import User

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

FLAGS = ("--idle-timeout", "1s", "--idle-reap", "2s")
PATIENCE_S = 60
KEPT = {"marked", "profiled", "told"}


@contextmanager
def held(user: User, name: str) -> Iterator[None]:
    """A session in a box while the context lasts: the box is not removed before its command."""
    command = user.command(name, f"echo {name} > /root/name; echo begun; cat")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"begun\n"
        yield
        session.communicate(timeout=PATIENCE_S)
    assert session.returncode == 0


def test_durable_boxes_outlive_the_others(image_rootfs: Path, tmp_path: Path) -> None:
    with open_daemon(image_rootfs, flags=FLAGS) as daemon:
        user = User(daemon, tmp_path)
        user.ssh("cli", "profiles set lasting --image debian --durable")
        with held(user, "told"):
            row = user.ssh("cli", "keep told").splitlines()[1]
        assert row.split() == ["told", "yes", "durable"]
        user.ssh("marked!", "echo marked > /root/name")
        user.ssh("profiled:lasting", "echo profiled > /root/name")
        user.ssh("plain", "true")
        until(lambda: set(user.boxes()) == KEPT, PATIENCE_S)
        until(lambda: {box["state"] for box in user.boxes().values()} == {"suspended"}, PATIENCE_S)
        daemon.end(signal.SIGTERM)
        daemon.start()
        user.ssh("plain", "true")
        until(lambda: set(user.boxes()) == KEPT, PATIENCE_S)
        assert {box["removal"] for box in user.boxes().values()} == {None}
        for name in sorted(KEPT):
            assert user.ssh(name, "cat /root/name") == name
        assert user.ssh("cli", "profiles show lasting").splitlines()[-1].split() == [
            "durable:",
            "yes",
        ]
        user.ssh("cli", "keep --off told profiled")
        until(lambda: set(user.boxes()) == {"marked"}, PATIENCE_S)
        assert user.ssh("marked", "cat /root/name") == "marked"
