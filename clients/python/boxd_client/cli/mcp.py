"""`box mcp-config`: the entry of an MCP client's configuration file. It never has the API key."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd_client.config import KEY_VARIABLE, load_url
from boxd_client.errors import ConfigurationError

if TYPE_CHECKING:
    from boxd_client.cli.context import Context

NAME = "boxes"
SSH_PORT = 22
_HOST = re.compile(r"[A-Za-z0-9._:\[\]%][A-Za-z0-9._:\[\]%-]{0,252}")
_INPUTS = [
    {"type": "promptString", "id": "boxd-key", "description": "API key", "password": True},
]


@dataclass(frozen=True)
class Kind:
    """How one client reads its configuration.

    `reference`: how a header refers to the API key; None if only a literal key is possible.
    """

    file: str
    section: str
    reference: str | None
    typed: bool = False


VARIABLE = f"${{{KEY_VARIABLE}}}"
KINDS = {
    "claude-code": Kind(".mcp.json", "mcpServers", VARIABLE, typed=True),
    "claude-desktop": Kind("claude_desktop_config.json", "mcpServers", None),
    "codex": Kind("~/.codex/config.toml", "mcp_servers", KEY_VARIABLE),
    "cursor": Kind("~/.cursor/mcp.json", "mcpServers", f"${{env:{KEY_VARIABLE}}}"),
    "vscode": Kind(".vscode/mcp.json", "servers", "${input:boxd-key}", typed=True),
    "zed": Kind("~/.config/zed/settings.json", "context_servers", None),
}


def mcp_config(context: Context) -> int:
    """Print the configuration of a client, and the name of its file on stderr."""
    args = context.args
    kind = KINDS[args.client]
    if args.ssh is not None:
        sys.stdout.write(by_ssh(args.client, args.ssh, args.ssh_port))
    else:
        sys.stdout.write(by_url(args.client, load_url()))
    if not context.json:
        sys.stderr.write(f"box: put this into {kind.file}\n")
    return 0


def by_ssh(client: str, host: str, port: int = SSH_PORT) -> str:
    """Return a configuration that starts `ssh`. Raises ConfigurationError."""
    if _HOST.fullmatch(host) is None:
        raise ConfigurationError(f"{host!r} is not a host name")
    kind = KINDS[client]
    words = ["-T", *(("-p", str(port)) if port != SSH_PORT else ()), f"cli@{host}", "mcp"]
    if client == "codex":
        # A JSON text or list of texts is the same in TOML.
        return f'[{kind.section}.{NAME}]\ncommand = "ssh"\nargs = {json.dumps(words)}\n'
    entry: dict[str, object] = {"type": "stdio"} if client == "vscode" else {}
    return _json({kind.section: {NAME: {**entry, "command": "ssh", "args": words}}})


def by_url(client: str, url: str) -> str:
    """Return a configuration that connects to a URL. Raises ConfigurationError."""
    kind = KINDS[client]
    if kind.reference is None:
        raise ConfigurationError(
            f"{client} cannot take an API key from the environment; "
            f"run: box mcp-config {client} --ssh HOST"
        )
    place = f"{url}/v1/mcp"
    if client == "codex":
        text = f"[{kind.section}.{NAME}]\nurl = {json.dumps(place)}\n"
        return text + f"bearer_token_env_var = {json.dumps(kind.reference)}\n"
    headers = {"Authorization": f"Bearer {kind.reference}"}
    entry: dict[str, object] = {"type": "http"} if kind.typed else {}
    body: dict[str, object] = {
        kind.section: {NAME: {**entry, "url": place, "headers": headers}},
    }
    if client == "vscode":
        body["inputs"] = _INPUTS
    return _json(body)


def _json(body: dict[str, object]) -> str:
    return json.dumps(body, indent=2) + "\n"
