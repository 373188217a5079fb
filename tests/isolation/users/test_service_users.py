"""Ids of boxes as the whole service shows them: after an upgrade, and on /wrk."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import id_maps
from boxd.backends.host.names import HostNames
from tests.harness.mounts.drive import until
from tests.harness.service.daemon import installation
from tests.harness.service.user import SSH, User

if TYPE_CHECKING:
    from tests.harness.service.daemon import Daemon

COUNTER = "i=0; while :; do i=$((i + 1)); echo $i > /root/count; sleep 0.05; done"


def init(daemon: Daemon, user: User, box: str) -> int:
    """Return the pid of a box's init on the host."""
    box_id = str(user.boxes()[box]["id"])
    return int(HostNames(daemon.instance, daemon.state.resolve()).paths(box_id).pid.read_text())


def end(pid: int) -> None:
    """Kill a process and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}/exe").exists())


@pytest.mark.timeout(300)
def test_boxes_of_an_earlier_release_move_over_without_loss(
    image_rootfs: Path, tmp_path: Path
) -> None:
    """`--privileged-boxes` has the boxes of earlier releases, in the ids of the host."""
    with installation(image_rootfs, flags=("--privileged-boxes",)) as daemon:
        daemon.start()
        user = User(daemon, tmp_path)
        for name in ("asleep", "awake", "stopped"):
            user.ssh(name, f"echo {name} > /root/note; chown 1000:1001 /root/note")
            user.ssh(name, f"nohup sh -c '{COUNTER}' >/dev/null 2>&1 & echo $! > /root/pid")
            assert id_maps.of_process(init(daemon, user, name)) is None
        user.ssh("stopped", "echo drive > /wrk/file; chown 1000:1001 /wrk/file")
        user.ssh("cli", "suspend asleep")
        awake = init(daemon, user, "awake")
        daemon.end(signal.SIGTERM)
        daemon.flags.remove("--privileged-boxes")
        daemon.start()

        # Memory keeps its ids, so a running box and a suspended one go on as they were.
        assert init(daemon, user, "awake") == awake
        for name in ("awake", "asleep"):
            script = (
                "before=$(cat count); kill -0 $(cat pid); sleep 1; echo $(($(cat count) > before))"
            )
            assert user.ssh(name, f"cd /root && {script}") == "1"
            assert id_maps.of_process(init(daemon, user, name)) is None
        # A start from the disk moves a box over: here after the end of its processes.
        for name in ("awake", "stopped"):
            end(init(daemon, user, name))
            assert user.ssh(name, "cat /root/note; stat -c %u:%g /root/note").split() == [
                name,
                "1000:1001",
            ]
            assert id_maps.of_process(init(daemon, user, name)) is not None
        script = "cat /wrk/file; stat -c %u:%g /wrk/file"
        assert user.ssh("stopped", script).split() == ["drive", "1000:1001"]


@pytest.mark.timeout(300)
def test_owners_on_the_drive_are_the_same_everywhere(daemon: Daemon, tmp_path: Path) -> None:
    user = User(daemon, tmp_path)
    key = user.ssh("cli", "apikeys create laptop").split()[-1]
    script = (
        "cd /wrk && mkdir own && touch own/root && install -o 1000 -g 1001 /dev/null own/user"
        " && setpriv --reuid 1002 --regid 1003 --clear-groups true"
        " && chown 1002:1003 own && setpriv --reuid 1002 --regid 1003 --clear-groups touch own/mine"
    )
    user.ssh("first", script)
    expected = {"root": "0:0", "user": "1000:1001", "mine": "1002:1003"}
    look = "stat -c '%n %u:%g' /wrk/own/* | sed 's,.*/,,'"
    for box in ("first", "second"):
        assert dict(map(str.split, user.ssh(box, look).splitlines())) == expected
    # Its own root may change any owner, and HTTP creates files of root.
    assert user.put(key, "/v1/wrk/own/http", b"text") in {200, 201, 204}
    expected["http"] = "0:0"
    assert dict(map(str.split, user.ssh("second", look).splitlines())) == expected
    # A forked box and a resumed box see the same.
    user.ssh("cli", "snapshot fork first third")
    user.ssh("cli", "suspend second")
    for box in ("second", "third"):
        assert dict(map(str.split, user.ssh(box, look).splitlines())) == expected
    # sftp shows and sets ids of the box.
    batch = tmp_path / "batch"
    batch.write_text("chown 1004 /wrk/own/http\nls -ln /wrk/own\n")
    options = ("-i", str(user.key), "-P", str(daemon.ssh_port), "-b", str(batch))
    done = subprocess.run(
        ["sftp", *SSH[1:], *options, "first@127.0.0.1"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("-")]
    expected["http"] = "1004:0"
    assert {row[8].rpartition("/")[2]: f"{row[2]}:{row[3]}" for row in rows} == expected
    # A restored file keeps its owner.
    user.ssh("first", "rm /wrk/own/user")
    user.ssh("second", "box-guest trash restore /wrk/own/user")
    assert dict(map(str.split, user.ssh("third", look).splitlines())) == expected
