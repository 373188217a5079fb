"""Ports of real boxes over HTTP: in the box's own network, and awake again when it sleeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.port_program import START
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def user(daemon: Daemon, tmp_path: Path) -> User:
    """A user of the daemon."""
    return User(daemon, tmp_path)


def test_a_port_of_a_real_box_sleeps_and_wakes_with_it(user: User) -> None:
    key = user.ssh("cli", "apikeys create laptop").split()[-1]
    path = "/v1/boxes/web/proxy/3000/a%2fb?c=1"
    assert user.http("GET", key, path)[0] == 404
    user.ssh("web", "bash -s <<'SCRIPT'\n" + START + "\nSCRIPT")
    status, said = user.http("GET", key, path)
    assert status == 200, said
    pid, visits, client, asked = said.decode().split()
    assert (visits, client, asked) == ("1", "127.0.0.1", "/a%2fb?c=1")
    status, said = user.http("GET", key, "/v1/boxes/web/proxy/3001/")
    assert (status, b"connection refused" in said) == (502, True)
    until(lambda: user.boxes()["web"]["attached"] == 0, 30)
    assert user.http("POST", key, "/v1/boxes/web/suspend")[0] == 200
    status, said = user.http("GET", key, path)
    assert (status, said.decode().split()[:2]) == (200, [pid, "2"])
    assert user.boxes()["web"]["state"] == "running"
    user.ssh("cli", "rm web")
    assert user.http("GET", key, path)[0] == 404
