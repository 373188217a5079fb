"""Background commands in real boxes: they outlive the service, suspensions and forks."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.daemon import open_daemon
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60
ECHO = "'echo begun; while read x; do echo got $x; echo err $x >&2; done; exit 5'"


def start(user: User, words: str) -> str:
    """Start a background command in the box `dev`, and return its id."""
    return user.ssh("cli", f"commands start {words}").split()[0]


def state(user: User, number: str, box: str = "dev") -> dict[str, Any]:
    """The state of a background command."""
    commands: list[dict[str, Any]] = json.loads(user.ssh("cli", f"commands ls {box} --json"))
    return next(command for command in commands if command["id"] == number)


def write(user: User, number: str, text: str, box: str = "dev", option: str = "") -> None:
    """Write a line to a background command."""
    command = user.command("cli", f"commands write {box} {number} {option}")
    subprocess.run(command, input=f"{text}\n".encode(), check=True, capture_output=True)


def output(user: User, number: str, box: str = "dev", options: str = "") -> tuple[str, str, int]:
    """The output of a background command on both streams, and the exit code."""
    command = user.command("cli", f"commands output {box} {number} {options}")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout, done.stderr, done.returncode


def test_a_command_outlives_everything_but_its_box(image_rootfs: Path, tmp_path: Path) -> None:
    with open_daemon(image_rootfs) as daemon:
        user = User(daemon, tmp_path)
        user.ssh("dev", "true")
        number = start(user, f"--stdin dev {ECHO}")
        pid = state(user, number)["pid"]
        write(user, number, "one")
        assert "suspended" in user.ssh("cli", "suspend dev")
        assert user.boxes()["dev"]["memory"]
        write(user, number, "two")
        assert state(user, number)["pid"] == pid
        daemon.end(signal.SIGKILL)
        daemon.start()
        write(user, number, "three")
        daemon.end(signal.SIGTERM)
        daemon.start()
        write(user, number, "four")
        user.ssh("cli", "snapshot fork dev copy")
        write(user, number, "fork", "copy")
        write(user, number, "original")
        write(user, number, "end", option="--close")
        write(user, number, "end", "copy", option="--close")
        for box, own in (("dev", "original"), ("copy", "fork")):
            words = ["one", "two", "three", "four", own, "end"]
            expected = "".join(f"got {word}\n" for word in words)
            errors = "".join(f"err {word}\n" for word in words)
            assert output(user, number, box, "--follow") == (f"begun\n{expected}", errors, 5)
            assert state(user, number, box)["dropped_bytes"] == 0
        assert user.boxes()["dev"]["detail"] == ""
        user.ssh("cli", "rm --force copy")


def test_a_running_command_keeps_its_box_awake(image_rootfs: Path, tmp_path: Path) -> None:
    with open_daemon(image_rootfs, flags=("--idle-timeout", "1s")) as daemon:
        user = User(daemon, tmp_path)
        user.ssh("dev", "true")
        number = start(user, "--stdin dev cat")
        until(lambda: user.boxes()["dev"]["why"] == {"command": 1}, PATIENCE_S)
        assert user.boxes()["dev"]["next"] is None
        quiet = start(user, "--no-keep-awake --stdin dev cat")
        write(user, number, "last", option="--close")
        until(lambda: user.boxes()["dev"]["state"] == "suspended", PATIENCE_S)
        assert state(user, quiet)["state"] == "running"
        write(user, quiet, "awake", option="--close")
        assert output(user, quiet, options="--follow") == ("awake\n", "", 0)
        start(user, "--stdin dev cat")
        daemon.end(signal.SIGKILL)
        daemon.start()
        until(lambda: user.boxes()["dev"]["why"] == {"command": 1}, PATIENCE_S)


def test_a_watch_of_the_drive_is_refused(image_rootfs: Path, tmp_path: Path) -> None:
    with open_daemon(image_rootfs, flags=("--workspace-automount",)) as daemon:
        user = User(daemon, tmp_path)
        user.ssh("dev", "mkdir /wrk/place")
        key = user.ssh("cli", "apikeys create laptop").split()[0]
        for path, status in (("/wrk", "409"), ("/wrk/place", "409"), ("/none", "404")):
            url = f"http://127.0.0.1:{daemon.api_port}/v1/boxes/dev/watch?path={path}"
            words = [
                "curl",
                "-s",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "-H",
                f"X-Api-Key: {key}",
            ]
            done = subprocess.run([*words, url], check=True, capture_output=True, text=True)
            assert done.stdout == status, path
