"""The whole service as a process: what survives which end of the daemon, and what it refuses."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from boxd.boxes.lifecycle.adoption import SLEEPS
from tests.harness.mounts.drive import until
from tests.harness.service.daemon import BOXD, STOP_S, Daemon, open_daemon
from tests.harness.service.user import User, user

__all__ = ["user"]


pytestmark = pytest.mark.timeout(300)


def own(processes: list[str]) -> set[str]:
    """Without the database's, which come and go and change their titles as they like; each once,
    as a program that starts another one is there twice for a moment."""
    return {line for line in processes if not line.startswith("postgres: ")}


def kill_all(daemon: Daemon) -> None:
    """Kill every process of a daemon at once: none of them sees another one end.

    Otherwise the helper clears the host when the first process ends.
    """
    inside = f"{daemon.state}/"
    assert daemon.process is not None
    processes = psutil.Process(daemon.process.pid).children(recursive=True)
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = [*(process.info["cmdline"] or []), f"{process.info['cwd']}/"]
        if any(inside in word for word in words):
            processes.append(process)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    daemon.end(signal.SIGKILL)
    until(lambda: not daemon.processes(), 30)


def routing() -> str:
    """Routes, rules and addresses of this machine."""
    commands = (["route", "show", "table", "all"], ["rule", "show"], ["addr", "show"])
    return "".join(
        subprocess.run(["ip", "-4", *words], check=True, capture_output=True, text=True).stdout
        for words in commands
    )


def test_box_lives_on_through_ends_of_the_daemon(daemon: Daemon, user: User) -> None:
    user.ssh(
        "dev", "echo one >/wrk/file; echo two >/root/file; nohup sleep 100000 >/dev/null 2>&1 &"
    )
    key = user.ssh("cli", "apikeys create laptop")
    assert user.get(key, "/v1/wrk/file") == (200, b"one\n")
    before = user.boxes()["dev"]["id"]
    for end in (signal.SIGTERM, signal.SIGKILL):
        daemon.end(end)
        if end is signal.SIGTERM:
            assert "boxes keep running" in daemon.log.read_text().splitlines()[-1]
        daemon.start()
        assert user.boxes()["dev"]["id"] == before
        assert "sleep 100000" in user.ssh("dev", "cat /proc/*/cmdline | tr '\\0' ' '")
        assert user.ssh("dev", "cat /wrk/file /root/file") == "one\ntwo"
        assert user.get(key, "/v1/wrk/file") == (200, b"one\n")


def test_end_of_everything_keeps_disks_and_drives(daemon: Daemon, user: User) -> None:
    user.ssh("ws1/dev", "echo one >/wrk/file; echo two >/root/file")
    daemon.end(signal.SIGINT)
    assert daemon.left_overs() == []
    daemon.start()
    box = user.boxes()["ws1/dev"]
    assert (box["state"], box["detail"]) == ("suspended", SLEEPS)
    assert user.ssh("ws1/dev", "cat /wrk/file /root/file") == "one\ntwo"
    assert user.boxes()["ws1/dev"]["state"] == "running"


def test_down_stops_what_a_dead_daemon_left(daemon: Daemon, user: User) -> None:
    user.ssh("dev", "true")
    daemon.end(signal.SIGKILL)
    assert daemon.processes()
    down = daemon.run("down")
    assert down.returncode == 0, down.stderr
    assert "Stopping the boxes and servers of an earlier boxd" in down.stderr
    assert down.stderr.endswith("Stopped.\n")
    assert daemon.left_overs() == []
    again = daemon.run("down")
    assert (again.returncode, again.stderr) == (0, "nothing is running\n")
    daemon.start()
    assert user.boxes()["dev"]["state"] == "suspended"


def test_down_clears_the_host_when_every_process_was_killed(image_rootfs: Path) -> None:
    with open_daemon(image_rootfs, flags=["--boxes-size", "0"]) as alone:
        subnet = (alone.state / "boxes" / "subnet").read_text().strip()
        kill_all(alone)
        assert alone.left_overs() == ["nft table"]
        assert subnet in routing()
        down = alone.run("down")
        assert (down.returncode, down.stderr.splitlines()[-1]) == (0, "Stopped.")
        assert alone.left_overs() == []
        assert subnet not in routing()
        assert list(Path("/sys/fs/cgroup").glob(f"**/boxd-{alone.instance}")) == []
        assert alone.run("down").stderr == "nothing is running\n"


def test_down_stops_a_living_daemon(daemon: Daemon) -> None:
    assert daemon.process is not None
    down = daemon.run("down")
    assert down.returncode == 0, down.stderr
    assert down.stderr.endswith(f"stopped process {daemon.process.pid}\n")
    assert daemon.process.wait(STOP_S) == 0
    assert daemon.left_overs() == []
    daemon.start()


def test_create_that_fails_on_the_host_leaves_nothing(daemon: Daemon, user: User) -> None:
    daemon.end(signal.SIGINT)
    mounts = daemon.state / "mounts"
    away = mounts.rename(daemon.state / "mounts-away") if mounts.exists() else None
    mounts.touch()
    try:
        daemon.start()
        boxes, processes = daemon.boxes(), own(daemon.processes())
        user.ssh("dev", "true", status=255)
        assert user.boxes() == {}
        assert daemon.boxes() == boxes
        until(lambda: own(daemon.processes()) == processes)
        assert not [one for one in daemon.left_overs() if one.startswith("netns")]
    finally:
        mounts.unlink()
        if away is not None:
            away.rename(mounts)
    assert user.ssh("dev", "echo again") == "again"


def test_second_daemon_is_refused(daemon: Daemon) -> None:
    assert daemon.process is not None
    done = daemon.run("serve")
    assert done.returncode == 1
    assert f"served by process {daemon.process.pid}" in done.stderr
    assert "boxd down" in done.stderr
    assert daemon.run("doctor").returncode == 0


def test_taken_port_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    taken = f"127.0.0.1:{daemon.ssh_port}"
    state = tmp_path / "state"
    done = subprocess.run(
        [*BOXD, "serve", "--state-dir", str(state), "--ssh-addr", taken],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"{taken} is in use" in done.stderr
    assert "--ssh-addr" in done.stderr
    assert not state.exists()


def test_state_directory_of_another_database_is_refused(daemon: Daemon, user: User) -> None:
    user.ssh("dev", "true")
    daemon.end(signal.SIGINT)
    instance = daemon.state / "instance"
    content = instance.read_bytes()
    instance.write_bytes(b"other")
    try:
        done = daemon.run("serve", "--ssh-addr", "127.0.0.1:0")
        assert done.returncode == 1
        assert "does not belong to the state directory" in done.stderr
    finally:
        instance.write_bytes(content)
    daemon.start()
    assert user.ssh("dev", "echo there") == "there"
