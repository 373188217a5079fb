"""Messages and places that the guest agent and the daemon agree on. Standard library only.

The control channel is one SSH session channel with subsystem `box-control` that the daemon opens
in the tunnel. Both sides write JSON objects, one a line, at most `MAX_LINE` bytes. A message has a
`type`. A request carries an `id` that its sender chose; its answer is `reply {id, ok, result |
error}`. Either side may ask; a type that is not known is ignored, so that either may be newer.

From the agent:

- `hello {version, boot, generation, forward_dir}` comes first; the box is attachable after it.
  `boot` is new with every start of the agent, `generation` counts its tunnels, `forward_dir` is
  where sockets of forwarded SSH agents may be made.
- `activity {shells}`, after each hello and whenever the number changes: terminals with a shell that
  nobody is attached to (tmux, screen).
- requests on behalf of somebody in the box, `REQUESTS`.

From the daemon:

- request `suspend_soon {}`: the box is about to be frozen. The agent answers `{shells}` and closes
  its end of the tunnel, because half of a connection cannot be stored. It dials again when the
  daemon has made the tunnel's socket anew, and by itself after a few seconds.
- requests `drive_mount {credentials}`, `drive_umount {force}`, `drive_info {}`, to boxes that mount
  their drive themselves, each answered with `drive_state`. `credentials` are what the mount process
  reads, with `store.endpoint` left to the agent; `force` takes the drive from who uses it. The
  daemon forwards `DRIVE_META` and `DRIVE_BLOCKS` before, and the mount reaches its stores by them.

The CLI in the box speaks the same lines on the guest socket: `info {id}`, which the agent answers,
and `REQUESTS`, which it passes on.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VERSION = 1
MAX_LINE = 64 * 1024
CONTROL_SUBSYSTEM = "box-control"
HANDOVER_SUBSYSTEM = "box-handover"
"""A command that comes sealed on the channel's input, with variables that the agent is not to see:
`box_guest.handover`. The environment of the channel is that of its session, as of any command."""

HELLO = "hello"
REPLY = "reply"
ACTIVITY = "activity"
SUSPEND_SOON = "suspend_soon"
INFO = "info"
WORKSPACE = "workspace"
PIN = "pin"
UNPIN = "unpin"
AUTO_SUSPEND = "auto_suspend"
LIFE = "life"
ASK = "ask"
ASK_STATE = "ask_state"
ASKS = (ASK, ASK_STATE)
DRIVE_MOUNT = "drive_mount"
DRIVE_UMOUNT = "drive_umount"
DRIVE_INFO = "drive_info"

WORKSPACE_VERBS = ("mount", "info", "umount")
PIN_DEFAULT_S = 2 * 3600
PIN_MAX_S = 7 * 24 * 3600
MAX_WHY = 200
"""Characters that tell why a box is pinned."""

MAX_QUESTION = 2000
"""Characters of a question."""
MAX_OPTIONS = 20
MAX_OPTION = 200
"""Characters of one answer to choose from."""

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
(optional: whose login shell sessions get; `root` when absent), `relay_key` (optional: OpenSSH
public key; the box is confidential, see `RELAY_HOST`). Other fields mean nothing, but an agent that
finds this file or the host key changed begins anew, so that one with another value tells a box from
the one whose memory it has."""
HOST_KEY = "host_key"
"""The agent's private key, OpenSSH format, 0600."""
RELAY_HOST = "box-relay"
"""Where connections to a confidential box's own SSH server are forwarded to, at any port. Nothing
listens there: the agent knows the name before it dials anything, and no other box is dialled so."""
STATE_DIR = PurePosixPath("/var/lib/box-guest")
"""What the agent keeps on the box's own disk, 0700."""
RELAY_HOST_KEY = "relay_key"
"""There: the host key of that server, made in the box, which nobody outside ever has."""
GUEST_SOCKET = PurePosixPath("/run/box-guest.sock")
"""Where `box-guest` inside the box talks to the agent."""
FORWARD_DIR = PurePosixPath("/run/box-forward")
"""The agent's own 0700 directory for sockets of forwarded SSH agents."""
DRIVE_DIR = PurePosixPath("/wrk")
GATE_DIR = PurePosixPath("/run/box-drive")
"""The agent's own 0700 directory for a drive that the box mounts itself; the metadata database
answers at a socket there as if it stood in the box."""
DRIVE_META = str(GATE_DIR / "meta")
DRIVE_BLOCKS = str(GATE_DIR / "blocks")
"""Paths of the two forwards to the stores of the drive. Nothing listens there."""

DIAL_TIMED_OUT = "timed out"
"""End of the reason with which the agent refuses a forward whose target did not answer in time."""


MAX_HOLDERS = 16
MAX_DRIVE_TEXT = 300
MAX_HEALTH = 40
"""Fields of what a mount tells of itself."""
_STORE = ("endpoint", "bucket", "prefix", "region", "access_key", "secret_key")
_VOLUME = ("volume", "schema", "meta_dsn")


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


def request_parameters(message: Mapping[str, Any]) -> dict[str, Any]:
    """The checked parameters of a request whose type is in `REQUESTS`; other fields are dropped.

    Raises ProtocolError with a text for who asked.
    """
    return REQUESTS[message["type"]](message)


def drive_request(message: Mapping[str, Any]) -> dict[str, Any]:
    """The checked parameters of one of the daemon's three requests. Raises ProtocolError, whose
    text holds no secret."""
    kind = message["type"]
    if kind == DRIVE_MOUNT:
        given = message.get("credentials")
        store = given.get("store") if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(store, dict):
            raise ProtocolError("credentials that are none")
        texts = [given.get(name) for name in _VOLUME] + [store.get(name) for name in _STORE]
        if not all(isinstance(text, str) and text for text in texts):
            raise ProtocolError("credentials that are none")
        return {
            **{name: given[name] for name in _VOLUME},
            "store": {name: store[name] for name in _STORE},
        }
    if kind == DRIVE_UMOUNT:
        return {"force": message.get("force") is True}
    return {}


def drive_state(result: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent answered about its drive, checked: `mounted`; `error`, why not; `restarts` of
    the mount since it was asked for; `holders`, who keeps it from being taken away; `health`, what
    the mount tells of itself. Raises ProtocolError."""
    restarts, error, holders = result.get("restarts"), result.get("error"), result.get("holders")
    health = result.get("health")
    if (
        type(restarts) is not int
        or not 0 <= restarts < 1 << 31
        or not isinstance(error, str)
        or not isinstance(holders, list)
        or not isinstance(health, dict)
        or len(holders) > MAX_HOLDERS
        or len(health) > MAX_HEALTH
    ):
        raise ProtocolError("a malformed answer about the drive")
    return {
        "mounted": result.get("mounted") is True,
        "error": shown(error),
        "restarts": restarts,
        "holders": [shown(str(holder)) for holder in holders],
        "health": {shown(str(key)): _plain(value) for key, value in health.items()},
    }


def shown(text: str) -> str:
    """A text of the other side as one that can be shown: short, and of printable characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_DRIVE_TEXT])


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else None
    return shown(str(value))


def _workspace(message: Mapping[str, Any]) -> dict[str, Any]:
    verb = message.get("verb")
    if verb not in WORKSPACE_VERBS:
        raise ProtocolError(f"workspace knows {', '.join(WORKSPACE_VERBS)}")
    return {"verb": verb}


def _pin(message: Mapping[str, Any]) -> dict[str, Any]:
    seconds, why = message.get("for_s"), message.get("why")
    # A bool is an int to Python.
    if type(seconds) is not int or not 1 <= seconds <= PIN_MAX_S:
        raise ProtocolError("a pin holds from 1 second to 7 days")
    if not isinstance(why, str) or len(why) > MAX_WHY or not why.isprintable():
        raise ProtocolError(f"the reason of a pin is at most {MAX_WHY} printable characters")
    return {"for_s": seconds, "why": why}


def _auto_suspend(message: Mapping[str, Any]) -> dict[str, Any]:
    on = message.get("on")
    if not isinstance(on, bool):
        raise ProtocolError("auto-suspend is on or off")
    return {"on": on}


def _ask(message: Mapping[str, Any]) -> dict[str, Any]:
    question, options = message.get("question"), message.get("options")
    if not isinstance(question, str) or not 1 <= len(question) <= MAX_QUESTION:
        raise ProtocolError(f"a question has from 1 to {MAX_QUESTION} characters")
    if (
        not isinstance(options, list)
        or len(options) > MAX_OPTIONS
        or not all(isinstance(one, str) and 1 <= len(one) <= MAX_OPTION for one in options)
    ):
        raise ProtocolError(
            f"at most {MAX_OPTIONS} options of 1 to {MAX_OPTION} characters each are allowed"
        )
    if not all(_storable(text) for text in (question, *options)):
        raise ProtocolError("a question is text without NUL characters")
    return {"question": question, "options": options}


def _storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= one <= "\udfff" for one in text)


def _ask_state(message: Mapping[str, Any]) -> dict[str, Any]:
    ask = message.get("ask")
    if not isinstance(ask, str) or len(ask) > 64:
        raise ProtocolError("ask_state needs the id of a question")
    return {"ask": ask}


def _nothing(message: Mapping[str, Any]) -> dict[str, Any]:
    del message
    return {}


REQUESTS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    WORKSPACE: _workspace,
    PIN: _pin,
    UNPIN: _nothing,
    AUTO_SUSPEND: _auto_suspend,
    LIFE: _nothing,
    ASK: _ask,
    ASK_STATE: _ask_state,
}
"""What a box may ask of the daemon, and the check of its parameters: `workspace {verb:
mount|umount|info}`; `pin {for_s, why}`, `unpin`, `auto_suspend {on}`, each answered like `life`,
which tells what keeps the box awake (`pinned_until`, `pin_why`, `auto_suspend`); `ask {question,
options}`, a question to the owner, answered with `{ask}`, its id, and `ask_state {ask}` with
`{state, answer}`."""
