"""A task for the owner's agent in a real box: it asks, is answered, and its token stays with it."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from boxd.backends.host.names import HostNames
from tests.harness.memory import times_in_memory
from tests.harness.mounts.drive import until
from tests.harness.service.user import SSH, User

if TYPE_CHECKING:
    from tests.harness.service.daemon import Daemon

TOKEN = "canary-token-of-the-agent-in-a-real-box"
MARK = "canary-of-a-session-that-is-told-no-secret"
REFERENCE = Path(__file__).parents[4] / "docs" / "agents" / "reference-agent"
PROMPT = "hostname\n? Deploy it?|yes|no\necho deployed >/root/deployed"
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def message(number: int | None, method: str, **params: object) -> bytes:
    """A line of JSON-RPC."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(body if number is None else body | {"id": number}).encode() + b"\n"


def holders() -> set[str]:
    """Names of the processes in whose environment the token is; no command line may have it."""
    found = set()
    for process in psutil.process_iter():
        try:
            assert TOKEN not in " ".join(process.cmdline())
            if TOKEN in process.environ().values():
                found.add(process.name())
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return found


def inside(daemon: Daemon, user: User) -> list[psutil.Process]:
    """The processes of the box `dev`, its agent first."""
    paths = HostNames(daemon.instance, daemon.state).paths(str(user.boxes()["dev"]["id"]))
    init = psutil.Process(int(paths.pid.read_text()))
    return [init, *init.children(recursive=True)]


def knowing(daemon: Daemon, user: User, text: str = TOKEN) -> set[str]:
    """Names of the box's processes in whose memory a text stands."""
    found = set()
    for process in inside(daemon, user):
        with suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
            if times_in_memory(process.pid, text.encode()):
                found.add(process.name())
    return found


def check_the_search(daemon: Daemon, user: User) -> None:
    """A variable of a usual session stands in the memory of the agent that started it; it leaves a
    process behind that has it too."""
    command = user.command("dev", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & exec cat")
    with subprocess.Popen(
        [*SSH, "-o", f"SetEnv=MARK={MARK}", *command[len(SSH) :]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(b"begun\n")
        session.stdin.flush()
        assert session.stdout.readline() == b"begun\n"
        assert knowing(daemon, user, MARK) >= {"box-guest", "cat"}
        session.stdin.close()


def files_with_it(daemon: Daemon, text: str = TOKEN) -> list[str]:
    """Files of the installation, databases and memories of boxes included."""
    command = ["grep", "-rlaFs", "--devices=skip", text, str(daemon.state.parent)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
def test_an_agent_does_its_task_in_a_box(daemon: Daemon, tmp_path: Path) -> None:
    user = User(daemon, tmp_path)
    user.ssh("dev", "true")
    key = user.ssh("cli", "apikeys create laptop")
    assert user.put(key, "/v1/wrk/agent", REFERENCE.read_bytes()) == 201
    line = "agent set --cmd 'sh /wrk/agent' --env AGENT_TOKEN --format jsonl"
    subprocess.run(user.command("cli", line), check=True, input=TOKEN.encode(), timeout=60)
    mcp = subprocess.Popen(
        user.command("cli", "mcp"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert mcp.stdin is not None
        assert mcp.stdout is not None
        arguments = {"prompt": PROMPT, "agent": True, "box": "dev"}
        mcp.stdin.write(
            message(1, "initialize", **INITIALIZE)
            + message(None, "notifications/initialized")
            + message(2, "tools/call", name="delegate", arguments=arguments)
        )
        mcp.stdin.flush()
        asks: list[dict[str, Any]] = []
        end = time.monotonic() + 60
        while not asks:
            assert time.monotonic() < end
            asks = json.loads(user.ssh("cli", "asks ls --json"))
        assert (asks[0]["box"], asks[0]["options"]) == ("dev", ["yes", "no"])
        assert holders() == {"sh"}
        assert knowing(daemon, user) == {"sh"}
        assert "in use (1 delegate)" in user.ssh("cli", "suspend dev", status=1)
        assert TOKEN not in user.ssh("dev", "env; cat /proc/1/environ | tr '\\0' '\\n'")
        assert files_with_it(daemon) == []
        user.ssh("cli", f"asks answer {asks[0]['id']} yes")
        answers = [json.loads(mcp.stdout.readline()) for _ in range(2)]
        result = next(one["result"] for one in answers if one["id"] == 2)
        assert result["structuredContent"]["text"] == "3 steps done", result
    finally:
        mcp.kill()
        mcp.communicate()
    assert user.ssh("dev", "cat /root/deployed") == "deployed"
    until(lambda: holders() == set())
    assert knowing(daemon, user) == set()
    check_the_search(daemon, user)
    assert files_with_it(daemon) == []
    user.ssh("cli", "suspend dev")
    assert files_with_it(daemon) == []
    assert any("/memory/pages-" in path for path in files_with_it(daemon, MARK))
