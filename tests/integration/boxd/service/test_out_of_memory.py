"""A real box without memory: exec, MCP, `info` and the next login report it."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)
HOG = "tail /dev/zero"
KILLED = "out of memory: the kernel killed a process of the box"
LIMIT = "the box has 512 MiB"


def login(user: User, who: str) -> str:
    """What a shell says on stderr."""
    done = subprocess.run(
        user.command(who, "")[:-1],
        input="exit\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stderr


def kills(user: User, ref: str) -> int:
    """What `info` counts."""
    return int(json.loads(user.ssh("cli", f"info {ref} --json"))["usage"]["oom_kills"])


def test_it_is_said_where_a_user_looks(daemon: Daemon, tmp_path: Path) -> None:
    user = User(daemon, tmp_path)
    key = user.ssh("cli", "apikeys create test")
    user.ssh("hog:debian:tiny", "true")
    assert login(user, "hog") == ""
    assert kills(user, "hog") == 0

    status, body = user.http("POST", key, "/v1/exec/hog?stream=false", HOG.encode(), timeout=60)
    answer = json.loads(body)
    assert status == 200
    assert answer["exit_code"] == 137
    shown = base64.b64decode(answer["stderr"]).decode()
    assert f"boxd: {KILLED} while the command ran" in shown
    assert LIMIT in shown

    assert kills(user, "hog") == 1
    assert "killed, out of memory: 1" in " ".join(user.ssh("cli", "info hog").split())
    assert "oom_kills: 1" in user.ssh("hog", "box-guest info")

    said = login(user, "hog")
    assert f"{KILLED} since the last login" in said
    assert LIMIT in said
    assert login(user, "hog") == ""


def test_a_command_whose_child_is_killed_says_so(daemon: Daemon, tmp_path: Path) -> None:
    user = User(daemon, tmp_path)
    key = user.ssh("cli", "apikeys create test")
    user.ssh("quiet:debian:tiny", "true")
    _, body = user.http("POST", key, "/v1/exec/quiet", f"{HOG} || true".encode(), timeout=60)
    *output, end = [line[6:] for line in body.decode().split("\n") if line[:6] == "data: "]
    assert KILLED in b"".join(map(base64.b64decode, output)).decode()
    assert json.loads(end) == {"code": 0}
    _, body = user.http("POST", key, "/v1/exec/quiet?stream=false", b"true")
    assert json.loads(body)["stderr"] == ""
