"""Messages and places that the guest agent and the daemon agree on. Standard library only.

The control channel is one SSH session channel with subsystem `box-control` that the daemon opens
in the tunnel. Both sides write JSON objects, one a line, at most `MAX_LINE` bytes. A message has a
`type`. A request carries an `id`; its answer is `reply {id, ok, result | error}`.

agent -> daemon: `hello {version, boot, generation}` (first; the box is attachable after it),
`workspace {id, verb: mount|umount|info}` (request). daemon -> agent: `resumed {time}`, `drain`.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

VERSION = 1
MAX_LINE = 64 * 1024
CONTROL_SUBSYSTEM = "box-control"

RUNTIME_DIR = PurePosixPath("/.box")
"""The guest runtime inside a box (read-only)."""
RUN_DIR = PurePosixPath("/run/box")
"""The box's directory shared with the daemon: the names below are relative to it."""
TUNNEL_SOCKET = "tunnel.sock"
AGENT_CONFIG = "config.json"
"""JSON: `box_id`, `name`, `hostname`, `daemon_key` (OpenSSH public key), `env` (object)."""
HOST_KEY = "host_key"
"""The agent's private key, OpenSSH format, 0600."""
GUEST_SOCKET = PurePosixPath("/run/box-guest.sock")
"""Where `box-guest` inside the box talks to the agent."""
DRIVE_DIR = PurePosixPath("/wrk")


class ProtocolError(Exception):
    """The other side sent something that is not a message."""


def encode(message: dict[str, Any]) -> bytes:
    """One line, newline included. Raises ProtocolError above MAX_LINE."""
    line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    if len(line) > MAX_LINE:
        raise ProtocolError(f"message of {len(line)} bytes; at most {MAX_LINE} are allowed")
    return line


def decode(line: bytes) -> dict[str, Any]:
    """A message with a `type`; raises ProtocolError for anything else."""
    if len(line) > MAX_LINE:
        raise ProtocolError(f"line of {len(line)} bytes; at most {MAX_LINE} are allowed")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("not an object with a type")
    return message
