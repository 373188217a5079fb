"""A service without drives."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.service.daemon import Daemon, open_daemon
from tests.harness.service.user import User

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def driveless(image_rootfs: Path) -> Iterator[Daemon]:
    """`boxd serve --no-drive`; --workspace-automount is given as `make up` does."""
    with open_daemon(image_rootfs, flags=["--no-drive"]) as made:
        assert "--workspace-automount" in made.flags
        yield made


@pytest.fixture
def user(driveless: Daemon, tmp_path: Path) -> User:
    """An owner."""
    (tmp_path / "one").mkdir()
    return User(driveless, tmp_path / "one")


def test_no_surface_serves_a_drive(driveless: Daemon, user: User) -> None:
    assert user.ssh("dev", "ls -A /wrk; grep -c ' /wrk ' /proc/mounts || true") == "0"
    key = user.ssh("cli", "apikeys create laptop").split()[-1]
    for method, body in (("GET", None), ("PUT", b"x"), ("DELETE", None)):
        status, answer = user.http(method, key, "/v1/wrk/file", body)
        assert (status, "not enabled" in json.loads(answer)["error"]) == (503, True)
    assert "not enabled" in user.ssh("dev", "box-guest workspace mount", status=1)
    assert "not enabled" in user.ssh("dev", "box-guest workspace info", status=1)
    user.ssh("lab/dev", "true")
    assert "lab" in user.ssh("cli", "ws ls")
    user.ssh("cli", "stat")
    user.ssh("cli", "rm lab/dev")
    user.ssh("cli", "ws rm lab")


def test_a_box_that_had_a_drive_says_why_it_does_not_wake(
    image_rootfs: Path, tmp_path: Path
) -> None:
    with open_daemon(image_rootfs) as daemon:
        user = User(daemon, tmp_path)
        user.ssh("dev", "echo kept >/wrk/file; echo kept >/root/file")
        daemon.end(signal.SIGINT)
        daemon.flags.append("--no-drive")
        daemon.start()
        refused = user.ssh("dev", "true", status=255)
        assert "can resume only with it" in refused
        assert "--no-drive" in refused
        daemon.end(signal.SIGINT)
        daemon.flags.remove("--no-drive")
        daemon.start()
        assert user.ssh("dev", "cat /wrk/file /root/file") == "kept\nkept"
