"""Messages and places that the guest agent and the daemon agree on. Standard library only.

The control channel is one SSH session channel with subsystem `box-control` that the daemon opens
in the tunnel. Both sides write JSON objects, one a line, at most `MAX_LINE` bytes. A message has a
`type`. A request carries an `id`; its answer is `reply {id, ok, result | error}`.

agent -> daemon: `hello {version, boot, generation, forward_dir}` (first; the box is attachable
after it; `boot` is new with every start of the agent, `generation` counts its tunnels,
`forward_dir` is where sockets of forwarded SSH agents may be made), `workspace {id, verb:
mount|umount|info}` (request). daemon -> agent: `resumed {time}`, `drain`. A type that is not known
is ignored, so that either side may be newer.

The CLI in the box speaks the same lines on the guest socket: `info {id}`, `workspace {id, verb}`.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

VERSION = 1
MAX_LINE = 64 * 1024
CONTROL_SUBSYSTEM = "box-control"

PROCESS_NAME = "box-guest"
RUNTIME_DIR = PurePosixPath("/.box")
"""The guest runtime inside a box (read-only)."""
RUN_DIR = PurePosixPath("/run/box")
"""The box's directory shared with the daemon: the names below are relative to it."""
AGENT_COMMAND = (
    f"{RUNTIME_DIR}/lib/ld-linux-x86-64.so.2",
    "--library-path",
    f"{RUNTIME_DIR}/lib",
    f"{RUNTIME_DIR}/bin/python3",
    "-I",
    "-S",
    "-m",
    "box_guest",
)
"""How the agent is started in a box. Isolated mode and no `site`: files of the image must not
become modules of the agent."""
TUNNEL_SOCKET = "tunnel.sock"
AGENT_CONFIG = "config.json"
"""JSON: `box_id`, `name`, `hostname`, `daemon_key` (OpenSSH public key), `env` (object), `user`
(optional: whose login shell sessions get; `root` when absent)."""
HOST_KEY = "host_key"
"""The agent's private key, OpenSSH format, 0600."""
GUEST_SOCKET = PurePosixPath("/run/box-guest.sock")
"""Where `box-guest` inside the box talks to the agent."""
FORWARD_DIR = PurePosixPath("/run/box-forward")
"""The agent's own 0700 directory for sockets of forwarded SSH agents."""
DRIVE_DIR = PurePosixPath("/wrk")

DIAL_TIMED_OUT = "timed out"
"""End of the reason with which the agent refuses a forward whose target did not answer in time."""


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
