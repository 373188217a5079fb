"""A user of a `boxd serve` process: an SSH key and an API key."""

from __future__ import annotations

import http.client
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

SSH = (
    *("ssh", "-F", "none", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
    *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR"),
)


class User:
    """A person with an SSH key."""

    def __init__(self, daemon: Daemon, directory: Path) -> None:
        self.daemon = daemon
        self.key = directory / "key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True
        )

    def command(self, who: str, command: str) -> list[str]:
        """Return a command line of OpenSSH."""
        port = str(self.daemon.ssh_port)
        return [*SSH, "-i", str(self.key), "-p", port, f"{who}@127.0.0.1", command]

    def ssh(self, who: str, command: str, *, status: int = 0) -> str:
        """Return the output of a command: stdout, or stderr if it should fail with `status`."""
        done = subprocess.run(
            self.command(who, command),
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status, done.stderr + self.daemon.log.read_text()
        return (done.stderr if status else done.stdout).strip()

    def boxes(self) -> dict[str, dict[str, object]]:
        """Return the owner's boxes by reference."""
        found: list[dict[str, object]] = json.loads(self.ssh("cli", "ls --json"))
        return {str(box["ref"]): box for box in found}

    def get(self, key: str, path: str) -> tuple[int, bytes]:
        """Send an HTTP GET with an API key."""
        return self.http("GET", key, path)

    def put(self, key: str, path: str, body: bytes) -> int:
        """Send an HTTP PUT with an API key."""
        return self.http("PUT", key, path, body)[0]

    def http(
        self, method: str, key: str, path: str, body: bytes | None = None, *, timeout: float = 30
    ) -> tuple[int, bytes]:
        """Send a request with an API key; a body has the type text/plain."""
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.api_port, timeout=timeout)
        try:
            headers = {"Authorization": f"Bearer {key}"}
            if body is not None:
                headers["Content-Type"] = "text/plain"
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def send(
        self, key: str, path: str, body: bytes, headers: dict[str, str], *, method: str = "POST"
    ) -> tuple[int, bytes]:
        """Send a request with an API key and further headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.api_port, timeout=30)
        try:
            headers = {"Authorization": f"Bearer {key}", **headers}
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture
def user(daemon: Daemon, tmp_path: Path) -> User:
    """Return a user of the daemon."""
    return User(daemon, tmp_path)
