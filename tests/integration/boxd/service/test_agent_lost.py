"""Boxes whose agent is stopped or gone: real boxes, ptrace, OpenSSH.

The service finds them by itself.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from boxd.backends.host import cgroups
from boxd.backends.host.names import HostNames
from tests.harness.mounts.drive import until
from tests.harness.service.user import User

if TYPE_CHECKING:
    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)

HELD = r"its agent \(process 1\) does not run: process \d+ of the box stopped it with ptrace"
TRACE = """
import ctypes, os, pathlib, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
PTRACE_ATTACH, PTRACE_CONT = 16, 7
if libc.ptrace(PTRACE_ATTACH, 1, None, None):
    sys.exit(f"ptrace: {os.strerror(ctypes.get_errno())}")
os.waitpid(1, 0)
pathlib.Path("/root/tracer").write_text(str(os.getpid()))
number = 0
while sys.argv[1] == "lets-run":
    libc.ptrace(PTRACE_CONT, 1, None, number)
    number = os.WSTOPSIG(os.waitpid(1, 0)[1])
time.sleep(600)
"""


@pytest.fixture
def user(daemon: Daemon, tmp_path: Path) -> User:
    """A user of the daemon, with one box, `web`."""
    user = User(daemon, tmp_path)
    user.ssh("web", "touch /root/kept")
    return user


def _trace(user: User, how: str) -> None:
    """Has the box's root trace its first process until somebody ends that."""
    user.ssh("web", f"cat > /root/trace.py <<'END'\n{TRACE}\nEND")
    user.ssh("web", f"setsid python3 /root/trace.py {how} >/root/said 2>&1 </dev/null &")


def _directory(user: User, box: str = "web") -> Path:
    return user.daemon.state / "boxes" / str(user.boxes()[box]["id"])


def _agent(user: User, box: str = "web") -> psutil.Process:
    return psutil.Process(int((_directory(user, box) / "pid").read_text()))


def _detail(user: User) -> str:
    return str(json.loads(user.ssh("cli", "info web --json"))["detail"])


def test_a_box_whose_root_holds_its_agent_by_ptrace_starts_from_its_disk(user: User) -> None:
    agent = _agent(user)
    _trace(user, "holds")
    until(lambda: agent.status() == psutil.STATUS_TRACING_STOP)
    assert user.ssh("web", "ls /root/kept") == "/root/kept"
    assert _agent(user) != agent
    assert re.fullmatch(f"started from its disk: {HELD}", _detail(user))


def test_a_box_whose_agent_was_stopped_by_a_signal_starts_from_its_disk(user: User) -> None:
    agent = _agent(user)
    agent.send_signal(signal.SIGSTOP)
    until(lambda: agent.status() == psutil.STATUS_STOPPED)
    assert user.ssh("web", "ls /root/kept") == "/root/kept"
    assert _agent(user) != agent
    assert _detail(user).endswith("does not run: a signal stopped it")


def test_a_debugger_that_lets_the_agent_run_costs_no_box(user: User) -> None:
    agent = _agent(user)
    _trace(user, "lets-run")
    until(Path(f"/proc/{agent.pid}/root/root/tracer").exists)
    assert user.ssh("web", "ls /root/kept") == "/root/kept"
    assert _agent(user) == agent
    assert _detail(user) == ""


def test_an_agent_that_was_stopped_for_a_moment_costs_no_box(user: User) -> None:
    agent = _agent(user)
    agent.suspend()
    client = subprocess.Popen(user.command("web", "echo here"), stdout=subprocess.PIPE, text=True)
    agent.resume()
    output, _ = client.communicate(timeout=60)
    assert output == "here\n"
    assert _agent(user) == agent


def _session(user: User) -> subprocess.Popen[str]:
    """A session in the box that does not end by itself."""
    client = subprocess.Popen(
        user.command("web", "echo here; sleep 600"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "here\n"
    return client


def test_the_service_restarts_a_box_whose_agent_is_held_and_ends_its_sessions(user: User) -> None:
    """Nobody enters the box. Without the watch, the session ends after about a minute."""
    agent = _agent(user)
    with _session(user) as session:
        try:
            _trace(user, "holds")
            until(lambda: agent.status() == psutil.STATUS_TRACING_STOP)
            _, stderr = session.communicate(timeout=20)
        finally:
            session.kill()
    assert session.returncode == 255
    assert re.search(f"box web restarts from its disk: {HELD}", stderr), stderr
    until(lambda: re.fullmatch(f"started from its disk: {HELD}", _detail(user)))
    assert user.boxes()["web"]["state"] == "running"
    assert re.search(HELD, user.ssh("cli", "ls"))
    assert user.ssh("web", "ls /root/kept") == "/root/kept"


def test_ls_shows_a_box_whose_agent_was_killed_as_suspended(user: User) -> None:
    agent = _agent(user)
    agent.kill()
    until(lambda: user.boxes()["web"]["state"] == "suspended")
    assert user.boxes()["web"]["detail"] == "its processes ended; starts again from its disk"
    assert user.ssh("web", "ls /root/kept") == "/root/kept"


def test_the_service_leaves_a_frozen_box_alone(user: User) -> None:
    """An operator freezes a box; the restart of another box shows that the service looked."""
    user.ssh("other", "true")
    agent, other = _agent(user), _agent(user, "other")
    cgroup = HostNames(user.daemon.instance, user.daemon.state).cgroup(_directory(user).name)
    layout = cgroups.detect()
    asyncio.run(cgroups.freeze(layout, cgroup))
    try:
        other.send_signal(signal.SIGSTOP)
        until(lambda: str(user.boxes()["other"]["detail"]).startswith("started from its disk"))
    finally:
        cgroups.thaw(layout, cgroup)
    assert user.ssh("web", "ls /root/kept") == "/root/kept"
    assert _agent(user) == agent
    assert _detail(user) == ""
