"""Configurations of MCP clients: valid files, by URL and by SSH, without the key."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from boxd_client.cli.main import main
from boxd_client.cli.mcp import KINDS, by_ssh, by_url
from boxd_client.errors import ConfigurationError
from tests.harness.documents.readme import blocks

GUIDE = Path(__file__).parents[4] / "docs/guide/mcp.md"
URL = "https://boxes.example.com"
BY_URL = sorted(name for name, kind in KINDS.items() if kind.reference is not None)


def _parsed(client: str, text: str) -> object:
    return tomllib.loads(text) if client == "codex" else json.loads(text)


def _entry(client: str, text: str) -> dict[str, Any]:
    body: Any = _parsed(client, text)
    entry: dict[str, Any] = body[KINDS[client].section]["boxes"]
    return entry


@pytest.mark.parametrize("client", sorted(KINDS))
def test_by_ssh(client: str) -> None:
    entry = _entry(client, by_ssh(client, "boxes.example.com"))
    assert entry["command"] == "ssh"
    assert entry["args"] == ["-T", "cli@boxes.example.com", "mcp"]
    entry = _entry(client, by_ssh(client, "127.0.0.1", 2222))
    assert entry["args"] == ["-T", "-p", "2222", "cli@127.0.0.1", "mcp"]


@pytest.mark.parametrize("client", BY_URL)
def test_by_url(client: str) -> None:
    entry = _entry(client, by_url(client, URL))
    assert entry["url"] == f"{URL}/v1/mcp"
    if client == "codex":
        assert entry["bearer_token_env_var"] == "BOXD_API_KEY"
    else:
        assert entry["headers"]["Authorization"].startswith("Bearer ${")


@pytest.mark.parametrize("client", sorted(KINDS))
def test_the_guide_has_the_same_files(client: str) -> None:
    language = "toml" if client == "codex" else "json"
    texts = [block.text for block in blocks(GUIDE) if block.language == language]
    shown = [_parsed(client, text) for text in texts]
    assert _parsed(client, by_ssh(client, "boxes.example.com", 2222)) in shown
    if client in BY_URL:
        assert _parsed(client, by_url(client, URL)) in shown


def test_vscode_asks_for_the_key() -> None:
    (question,) = json.loads(by_url("vscode", URL))["inputs"]
    assert question["id"] == "boxd-key"
    assert question["password"] is True


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "a\nb", 'a"b', "a" * 300])
def test_hosts_that_are_none(host: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a host name"):
        by_ssh("codex", host)


def test_a_client_without_variables_needs_ssh() -> None:
    with pytest.raises(ConfigurationError, match="box mcp-config zed --ssh HOST"):
        by_url("zed", URL)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BOXD_URL", URL + "/")
    monkeypatch.setenv("BOXD_API_KEY", "svc_hidden")
    assert main(["mcp-config", "cursor"]) == 0
    out, err = capsys.readouterr()
    assert _entry("cursor", out)["url"] == f"{URL}/v1/mcp"
    assert "svc_hidden" not in out + err
    assert err == "box: put this into ~/.cursor/mcp.json\n"
