"""New boxes of the whole service are copies of one that has booted, and are nobody's twins."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)
WHO = """
hostname
cat /run/box/config.json | tr -d '\\n'; echo
sha256sum </run/box/host_key
head -c 16 /dev/urandom | sha256sum
tr '\\0' ' ' </proc/1/cmdline; echo
awk '{print $22}' /proc/1/stat
ls /wrk >/dev/null && echo drive
"""


@pytest.fixture
def user(daemon: Daemon, tmp_path: Path) -> User:
    """A user of the daemon."""
    return User(daemon, tmp_path)


def test_copies_have_a_name_a_key_and_an_address_of_their_own(daemon: Daemon, user: User) -> None:
    booted = user.ssh("booted", WHO).splitlines()
    until(lambda: "created a template of image debian" in daemon.log.read_text())
    one, two = (user.ssh(name, WHO).splitlines() for name in ("one", "two"))
    assert daemon.log.read_text().count("box copied from a template") == 2
    assert [lines[0] for lines in (booted, one, two)] == ["booted", "one", "two"]
    for place in (1, 2, 3):
        assert len({lines[place] for lines in (booted, one, two)}) == 3
    assert one[4] == two[4] == booted[4]
    assert one[6:] == two[6:] == booted[6:] == ["drive"]
    addresses = {user.ssh(name, "hostname -I") for name in ("one", "two")}
    assert len(addresses) == 2, addresses
    for name in ("one", "two"):
        assert name in user.ssh(name, "cat /etc/hosts").split()
    user.ssh("one", "echo mine >/root/file")
    assert user.ssh("two", "ls /root") == ""
    assert all(box["detail"] == "" for box in user.boxes().values())
    assert "suspended" in user.ssh("cli", "suspend one")
    assert user.ssh("one", "cat /root/file") == "mine"


def test_templates_serve_the_next_daemon(daemon: Daemon, user: User) -> None:
    user.ssh("first", "true")
    if "box copied from a template" not in daemon.log.read_text():
        until(lambda: "created a template of image debian" in daemon.log.read_text())
    for end in (signal.SIGKILL, signal.SIGINT):
        daemon.end(end)
        daemon.start()
        assert user.ssh(f"after-{end}", "hostname") == f"after-{end}"
        assert daemon.log.read_text().count("box copied from a template") == 1
