"""The agent's configuration: the files of the run directory, and paths from the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from box_guest import protocol
from box_guest.errors import ConfigError

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of a session, unless the image sets its own."""
DEFAULT_USER = "root"
"""Login user if the configuration names none."""
MAX_CONFIG = 1 << 20
"""Maximum size of the configuration file, in bytes."""


@dataclass(frozen=True, slots=True)
class AgentPaths:
    """Paths of the agent's files. They differ from the defaults only outside of boxes."""

    run_dir: Path = Path(protocol.RUN_DIR)
    guest_socket: Path = Path(protocol.GUEST_SOCKET)
    forward_dir: Path = Path(protocol.FORWARD_DIR)
    state_dir: Path = Path(protocol.STATE_DIR)

    @property
    def tunnel_socket(self) -> Path:
        """The Unix socket on which the daemon listens for the tunnel."""
        return self.run_dir / protocol.TUNNEL_SOCKET


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Identity and environment of one box.

    `daemon_key` is the only public key that may log in; `host_key` is the agent's private key (both
    in OpenSSH format). `env` is the image's environment; sessions start from it. `relay_key` is the
    public key that the SSH server of a confidential box accepts; it is None for other boxes.
    """

    box_id: str
    name: str
    hostname: str
    daemon_key: str
    host_key: bytes = field(repr=False)
    env: dict[str, str]
    user: str
    relay_key: str | None = None
    containers: bool = False
    """Programs in the box may mount file systems, as Docker does."""


def load(run_dir: Path) -> AgentConfig:
    """Read the configuration and the host key. Raises ConfigError, which names the faulty file."""
    path = run_dir / protocol.AGENT_CONFIG
    try:
        text = path.read_bytes()
        host_key = (run_dir / protocol.HOST_KEY).read_bytes()
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    if len(text) > MAX_CONFIG:
        raise ConfigError(f"{path}: the file is larger than {MAX_CONFIG} bytes")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: the file is not JSON") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the file is not a JSON object")
    return AgentConfig(
        box_id=_text(path, data, "box_id"),
        name=_text(path, data, "name"),
        hostname=_text(path, data, "hostname"),
        daemon_key=_text(path, data, "daemon_key"),
        host_key=host_key,
        env=_env(path, data.get("env", {})),
        user=_text(path, data, "user") if "user" in data else DEFAULT_USER,
        relay_key=_text(path, data, "relay_key") if "relay_key" in data else None,
        containers=data.get("containers") is True,
    )


def _text(path: Path, data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {key!r} is missing or not a string")
    return value


def _env(path: Path, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: 'env' is not a JSON object")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise ConfigError(f"{path}: 'env' contains a value that is not a string")
        if not key or "=" in key or "\0" in key + item:
            raise ConfigError(f"{path}: 'env' contains an invalid variable name or value")
    return dict(value)
