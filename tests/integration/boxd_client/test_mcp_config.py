"""What `box mcp-config` prints leads to the service: by URL with the key, and by SSH."""

from __future__ import annotations

import json
import subprocess
import tomllib
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.harness.clients.command import BoxCommand
from tests.harness.service.user import SSH, User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(120)

CLIENTS = {"claude-code": "mcpServers", "codex": "mcp_servers", "cursor": "mcpServers"}
CLIENTS |= {"vscode": "servers"}
SSH_ONLY = {"claude-desktop": "mcpServers", "zed": "context_servers"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def _entry(client: str, section: str, text: str) -> dict[str, Any]:
    body = tomllib.loads(text) if client == "codex" else json.loads(text)
    entry: dict[str, Any] = body[section]["boxes"]
    return entry


@pytest.mark.parametrize("client", sorted(CLIENTS))
def test_by_url(tmp_path: Path, url: str, key: str, client: str) -> None:
    box = BoxCommand(tmp_path, {"BOXD_URL": url, "BOXD_API_KEY": key})
    text = box.text("mcp-config", client)
    assert key not in text
    entry = _entry(client, CLIENTS[client], text)
    headers = entry.get("headers", {"Authorization": "Bearer ${BOXD_API_KEY}"})
    scheme, _, reference = headers["Authorization"].partition(" ")
    assert (scheme, reference[:2], reference[-1]) == ("Bearer", "${", "}")
    filled = {"Authorization": f"Bearer {key}", "Accept": "application/json, text/event-stream"}
    answer = httpx.post(entry["url"], json=HELLO, headers=filled)
    assert answer.status_code == 200
    assert '"serverInfo"' in answer.text


@pytest.mark.parametrize("client", sorted(CLIENTS | SSH_ONLY))
def test_by_ssh(daemon: Daemon, tmp_path: Path, client: str) -> None:
    box = BoxCommand(tmp_path)
    words = ("mcp-config", client, "--ssh", "127.0.0.1", "--ssh-port", str(daemon.ssh_port))
    entry = _entry(client, (CLIENTS | SSH_ONLY)[client], box.text(*words))
    user = User(daemon, tmp_path)
    done = subprocess.run(
        [entry["command"], *SSH[1:], "-i", str(user.key), *entry["args"]],
        input=json.dumps(HELLO).encode() + b"\n",
        capture_output=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["result"]["serverInfo"], done.stderr
