"""CHURN: boxes made and removed, also side by side, leave nothing on the host."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.names import HostNames
from boxd.config import Config
from tests.harness.mounts.drive import until
from tests.harness.service.footprint import ROOM, Footprint
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon
    from tests.plugins.figures import Figures

BATCH = 4
"""Boxes in one round, which live at the same time."""
SETTLE_S = 60.0
"""What a removal could not do at once is done by a timer."""


@pytest.mark.figure("CHURN")
@pytest.mark.timeout(600)
def test_boxes_that_come_and_go_leave_nothing(
    daemon: Daemon, tmp_path: Path, figures: Figures
) -> None:
    user = User(daemon, tmp_path)
    key = user.ssh("cli", "apikeys create churn")
    numbers = itertools.count()

    def asked(method: str, path: str, body: bytes | None) -> int:
        return user.http(method, key, path, body, timeout=120)[0]

    def one(_: int) -> tuple[int, int]:
        name = f"churn{next(numbers)}"
        made = asked("POST", f"/v1/exec/{name}?stream=false", b"echo x >/wrk/x")
        return made, asked("DELETE", f"/v1/boxes/{name}", None)

    def now() -> Footprint:
        assert daemon.process is not None
        return Footprint.of(daemon.state, daemon.process.pid)

    def left() -> list[str]:
        # The service replaces a template when a copy of it fails. Only the newest one may remain.
        newest = f"directories: memories/{_templates(daemon)[-1]}"
        return [line for line in now().more_than(before) if line != newest]

    # One box stays, and with it all that boxes share: the mount, the network, the parent cgroup,
    # and the template, which the service makes in the background.
    user.ssh("stays", "true")
    until(lambda: _templates(daemon), SETTLE_S)
    with ThreadPoolExecutor(BATCH) as pool:
        assert set(pool.map(one, range(BATCH))) == {(200, 204)}
        before = now()
        for _ in figures(ci=15, long=125):
            assert set(pool.map(one, range(BATCH))) == {(200, 204)}
    try:
        until(lambda: not left(), SETTLE_S)
    except TimeoutError:
        pytest.fail("left behind:\n" + "\n".join(left()))
    assert set(user.boxes()) == {"stays"}


def _templates(daemon: Daemon) -> list[str]:
    """Ids of the templates that the daemon has made so far, oldest first."""
    return re.findall(r"created a template of image \S+: (\w+)", daemon.log.read_text())


def test_a_footprint_tells_what_is_left(tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    (tmp_path / "boxes").mkdir()
    before = Footprint.of(tmp_path, os.getpid())
    assert Footprint.of(tmp_path, os.getpid()).more_than(before) == []
    (tmp_path / "boxes" / "left").mkdir()
    names = HostNames(Config(state_dir=tmp_path).instance, tmp_path)
    network, table = f"boxd-{names.instance}-left", names.table
    with ExitStack() as stack:
        process = subprocess.Popen(["sleep", "60"], cwd=tmp_path / "boxes")
        stack.callback(process.wait)
        stack.callback(process.kill)
        for _ in range(ROOM + 1):
            stack.enter_context((tmp_path / "file").open("w"))
        subprocess.run(["ip", "netns", "add", network], check=True)
        stack.callback(subprocess.run, ["ip", "netns", "delete", network], check=True)
        subprocess.run(["nft", "add", "table", "inet", table], check=True)
        stack.callback(subprocess.run, ["nft", "delete", "table", "inet", table], check=True)
        left = Footprint.of(tmp_path, os.getpid()).more_than(before)
    kinds = {line.split(":")[0] for line in left}
    assert kinds == {"namespaces", "rules", "directories", "processes", "descriptors"}
    assert "directories: boxes/left" in left
