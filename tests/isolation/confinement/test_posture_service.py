"""Boxes of the whole service, with their agent, are bound alike, however they came to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from boxd.backends.host import cgroups
from boxd.backends.host.names import HostNames
from tests.harness.boxes.posture import posture
from tests.harness.mounts.drive import until
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

CAPS = {
    "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"),
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"),
    "pids": ("pids.max",),
}


def bounds(daemon: Daemon, box_id: str) -> dict[str, Any]:
    """Posture of the agent and limits of the box; without what a tunnel makes of descriptors."""
    names, layout = HostNames(daemon.instance, daemon.state.resolve()), cgroups.detect()
    pid = int(names.paths(box_id).pid.read_text())
    seen = posture(pid, pid)
    for process in ("init", "command"):
        seen[process]["descriptors"] = []
        if "time" in seen[process]["own_namespaces"]:
            seen[process]["own_namespaces"].remove("time")  # what CRIU gives clocks with
    found = {
        file: (directory / file).read_text()
        for controller, files in CAPS.items()
        for directory in (layout.directory(controller, names.cgroup(box_id)),)
        for file in files
        if (directory / file).exists()
    }
    assert len(found) >= len(CAPS)
    return seen | found


@pytest.mark.timeout(300)
def test_boxes_are_bound_alike(daemon: Daemon, tmp_path: Path) -> None:
    user = User(daemon, tmp_path)
    user.ssh("booted", "true")
    until(lambda: "created a template of image debian" in daemon.log.read_text())
    user.ssh("copied", "true")
    assert "box copied from a template" in daemon.log.read_text()
    until(lambda: not any(box["attached"] for box in user.boxes().values()))
    user.ssh("cli", "snapshot fork copied forked")
    user.ssh("cli", "snapshot create forked good")
    user.ssh("cli", "snapshot fork forked restored")
    user.ssh("cli", "snapshot create restored good")
    user.ssh("cli", "snapshot restore restored good")
    user.ssh("restored", "true")
    user.ssh("cli", "snapshot fork booted resumed")
    user.ssh("cli", "suspend resumed")
    user.ssh("resumed", "true")
    boxes = user.boxes()
    states = {name: (box["state"], box["detail"]) for name, box in boxes.items()}
    assert set(states.values()) == {("running", "")}, f"{states}\n{daemon.log.read_text()}"
    seen = {name: bounds(daemon, str(box["id"])) for name, box in boxes.items()}
    assert seen.keys() == {"booted", "copied", "forked", "restored", "resumed"}
    init = seen["booted"]["init"]
    assert ("user" in init["own_namespaces"], init["Seccomp"]) == (True, "2")
    for name in seen:
        assert seen[name] == seen["booted"], name
