"""Messages and paths that the guest agent and the daemon share. Standard library only.

The control channel is one SSH session channel with subsystem `box-control`, which the daemon opens
in the tunnel. Both sides write JSON objects, one per line, of at most `MAX_LINE` bytes. Each
message has a `type`. A request carries an `id` that its sender chooses; the answer is `reply {id,
ok, result | error}`. Both sides may send requests. A side ignores a message whose type it does not
know, so either side may be newer than the other.

From the agent:

- `hello {version, boot, generation, forward_dir}` is the first message; the daemon may attach to
  the box after it. `boot` changes with every start of the agent, `generation` counts its tunnels,
  `forward_dir` is the directory for sockets of forwarded SSH agents.
- `activity {shells, commands}`, after each hello and whenever a number changes: the number of
  terminals with a shell that no client is attached to (tmux, screen), and the number of running
  background commands that keep the box awake. Earlier agents send no `commands`.
- requests on behalf of users in the box, `REQUESTS`.

From the daemon:

- request `suspend_soon {}`: the daemon is about to freeze the box. The agent answers `{shells,
  commands}` and closes its end of the tunnel, because a checkpoint cannot store half of a
  connection. The agent dials again when the daemon has created a new socket for the tunnel, or
  after a few seconds.
- requests `drive_mount {credentials}`, `drive_umount {force}`, `drive_info {}`, to boxes that mount
  their drive themselves. The agent answers each with `drive_state`. `credentials` is the input of
  the mount process; the agent fills in `store.endpoint`. `force` detaches the drive although
  processes use it. Before the mount, the daemon listens on the forwards `DRIVE_META` and
  `DRIVE_BLOCKS`, through which the mount reaches its stores.

The CLI in the box sends the same lines on the guest socket: `info {id}`, which the agent answers,
and `REQUESTS`, which the agent passes to the daemon.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VERSION = 1
"""Version of this protocol, sent in `hello`."""
MAX_LINE = 64 * 1024
"""Maximum size of a message, in bytes, including the newline."""
CONTROL_SUBSYSTEM = "box-control"
"""SSH subsystem of the control channel."""
HANDOVER_SUBSYSTEM = "box-handover"
"""SSH subsystem for a command that arrives sealed on the channel's input (`box_guest.handover`),
with variables that the agent must not see. The channel's environment is the session's, as for any
command."""
COMMANDS_SUBSYSTEM = "box-commands"
"""SSH subsystem for one request about background commands (`box_guest.shared.command_messages`)."""
WATCH_SUBSYSTEM = "box-watch"
"""SSH subsystem for one request to watch files (`box_guest.shared.watch_messages`)."""

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
TRASH_LIST = "trash_list"
TRASH_RESTORE = "trash_restore"
TRASH = (TRASH_LIST, TRASH_RESTORE)
DRIVE_MOUNT = "drive_mount"
DRIVE_UMOUNT = "drive_umount"
DRIVE_INFO = "drive_info"

WORKSPACE_VERBS = ("mount", "info", "umount")
"""Values of `verb` in a `workspace` request."""
PIN_DEFAULT_S = 2 * 3600
"""Seconds that a pin lasts by default."""
PIN_MAX_S = 7 * 24 * 3600
"""Maximum duration of a pin, in seconds."""
MAX_WHY = 200
"""Maximum length of a pin's reason, in characters."""

MAX_QUESTION = 2000
"""Maximum length of a question, in characters."""
MAX_OPTIONS = 20
"""Maximum number of options of a question."""
MAX_OPTION = 200
"""Maximum length of one option of a question, in characters."""

MAX_PATH = 4096
"""Maximum length of a path on the drive, in bytes."""
MAX_CURSOR = 1024
"""Maximum length of the cursor of a list, in characters."""
MAX_PAGE = 200
"""Maximum number of entries in one page of the trash."""
MAX_NUMBER = 10**18 - 1
"""Maximum number of an entry of the trash."""

PROCESS_NAME = "box-guest"
"""Name of the agent and its CLI in process lists."""
RUNTIME_DIR = PurePosixPath("/.box")
"""The guest runtime inside a box (read-only)."""
RUN_DIR = PurePosixPath("/run/box")
"""The directory that a box shares with the daemon; `TUNNEL_SOCKET`, `AGENT_CONFIG` and `HOST_KEY`
are relative to it."""
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
"""Command line of the agent in a box. Isolated mode and no `site`: files of the image must not
become modules of the agent."""
TUNNEL_SOCKET = "tunnel.sock"
"""Unix socket on which the daemon listens for the tunnel."""
AGENT_CONFIG = "config.json"
"""JSON: `box_id`, `name`, `hostname`, `daemon_key` (OpenSSH public key), `env` (object), `user`
(optional: login user of sessions; default `root`), `relay_key` (optional: OpenSSH public key; the
box is confidential, see `RELAY_HOST`), `containers` (optional: true if programs in the box may
mount file systems). The agent ignores other fields. However, it restarts when this file or the host
key changes. So a box that was restored from another box's memory detects its new identity."""
HOST_KEY = "host_key"
"""The agent's private key, OpenSSH format, mode 0600."""
RELAY_HOST = "box-relay"
"""Host name to which the daemon forwards connections for a confidential box's own SSH server, at
any port. Nothing listens there: the agent recognises the name before it dials. Other boxes reject
it."""
STATE_DIR = PurePosixPath("/var/lib/box-guest")
"""The agent's directory on the box's own disk, mode 0700."""
COMMANDS_DIR = "commands"
"""Directory in `STATE_DIR`: the output of background commands, one file each."""
RELAY_HOST_KEY = "relay_key"
"""File in `STATE_DIR`: host key of the confidential box's SSH server. It is created in the box and
never leaves it."""
GUEST_SOCKET = PurePosixPath("/run/box-guest.sock")
"""Unix socket on which the agent serves the `box-guest` CLI."""
FORWARD_DIR = PurePosixPath("/run/box-forward")
"""The agent's own directory, mode 0700, for sockets of forwarded SSH agents."""
DRIVE_DIR = PurePosixPath("/wrk")
"""Mount point of the drive in a box."""
GATE_DIR = PurePosixPath("/run/box-drive")
"""The agent's own directory, mode 0700, for a drive that the box mounts itself. The metadata
database answers on a socket there, as if it ran in the box."""
DRIVE_META = str(GATE_DIR / "meta")
DRIVE_BLOCKS = str(GATE_DIR / "blocks")
"""Paths of the two forwards to the metadata database and the object store. Nothing listens there.
"""

DIAL_TIMED_OUT = "timed out"
"""End of the agent's error text when the target of a forward did not answer in time."""

MAX_HOLDERS = 16
"""Maximum number of processes that `drive_state` names as users of the drive."""
MAX_DRIVE_TEXT = 300
"""Maximum length of a text in `drive_state`, in characters; longer texts are cut."""
MAX_HEALTH = 40
"""Maximum number of fields in the health report of a mount."""
_STORE = ("endpoint", "bucket", "prefix", "region", "access_key", "secret_key")
_VOLUME = ("volume", "schema", "meta_dsn")


class ProtocolError(Exception):
    """The other side sent something that is not a valid message."""


def encode(message: dict[str, Any]) -> bytes:
    """Encode a message as one line, newline included. Raises ProtocolError above MAX_LINE bytes."""
    line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    if len(line) > MAX_LINE:
        raise ProtocolError(f"the message has {len(line)} bytes; at most {MAX_LINE} are allowed")
    return line


def decode(line: bytes) -> dict[str, Any]:
    """Decode one line as a message with a `type`. Raises ProtocolError for anything else."""
    if len(line) > MAX_LINE:
        raise ProtocolError(f"the line has {len(line)} bytes; at most {MAX_LINE} are allowed")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("the line is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("the line is not a JSON object with a type")
    return message


def request_parameters(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked parameters of a request whose type is in `REQUESTS`. Other fields are
    dropped.

    Raises ProtocolError with a text for the user who sent the request.
    """
    return REQUESTS[message["type"]](message)


def drive_request(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked parameters of one of the daemon's three drive requests.

    Raises ProtocolError; its text contains no secret.
    """
    kind = message["type"]
    if kind == DRIVE_MOUNT:
        credentials = message.get("credentials")
        store = credentials.get("store") if isinstance(credentials, dict) else None
        if not isinstance(credentials, dict) or not isinstance(store, dict):
            raise ProtocolError("the credentials of the drive are incomplete")
        texts = [credentials.get(name) for name in _VOLUME] + [store.get(name) for name in _STORE]
        if not all(isinstance(text, str) and text for text in texts):
            raise ProtocolError("the credentials of the drive are incomplete")
        return {
            **{name: credentials[name] for name in _VOLUME},
            "store": {name: store[name] for name in _STORE},
        }
    if kind == DRIVE_UMOUNT:
        return {"force": message.get("force") is True}
    return {}


def drive_state(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked answer of an agent about its drive. Raises ProtocolError.

    Keys: `mounted`; `error`, the reason if it is not mounted; `restarts` of the mount since it was
    requested; `holders`, the processes that keep it from being unmounted; `health`, the mount's own
    report.
    """
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
        raise ProtocolError("the answer about the drive is malformed")
    return {
        "mounted": result.get("mounted") is True,
        "error": shown(error),
        "restarts": restarts,
        "holders": [shown(str(holder)) for holder in holders],
        "health": {shown(str(key)): _plain(value) for key, value in health.items()},
    }


def shown(text: str) -> str:
    """Make a text of the other side safe to display: short, and printable characters only."""
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
        raise ProtocolError(f"workspace needs one of the verbs {', '.join(WORKSPACE_VERBS)}")
    return {"verb": verb}


def _pin(message: Mapping[str, Any]) -> dict[str, Any]:
    seconds, why = message.get("for_s"), message.get("why")
    # In Python, a bool is an int.
    if type(seconds) is not int or not 1 <= seconds <= PIN_MAX_S:
        raise ProtocolError("a pin lasts from 1 second to 7 days")
    if not isinstance(why, str) or len(why) > MAX_WHY or not why.isprintable():
        raise ProtocolError(f"the reason of a pin has at most {MAX_WHY} printable characters")
    return {"for_s": seconds, "why": why}


def _auto_suspend(message: Mapping[str, Any]) -> dict[str, Any]:
    on = message.get("on")
    if not isinstance(on, bool):
        raise ProtocolError("auto-suspend must be on or off")
    return {"on": on}


def _ask(message: Mapping[str, Any]) -> dict[str, Any]:
    question, options = message.get("question"), message.get("options")
    if not isinstance(question, str) or not 1 <= len(question) <= MAX_QUESTION:
        raise ProtocolError(f"a question must have 1 to {MAX_QUESTION} characters")
    if (
        not isinstance(options, list)
        or len(options) > MAX_OPTIONS
        or not all(isinstance(option, str) and 1 <= len(option) <= MAX_OPTION for option in options)
    ):
        raise ProtocolError(
            f"at most {MAX_OPTIONS} options of 1 to {MAX_OPTION} characters each are allowed"
        )
    if not all(_storable(text) for text in (question, *options)):
        raise ProtocolError("a question must not contain NUL characters or lone surrogates")
    return {"question": question, "options": options}


def _storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _ask_state(message: Mapping[str, Any]) -> dict[str, Any]:
    ask = message.get("ask")
    if not isinstance(ask, str) or len(ask) > 64:
        raise ProtocolError("ask_state needs the id of a question")
    return {"ask": ask}


def _trash_list(message: Mapping[str, Any]) -> dict[str, Any]:
    cursor, limit = message.get("cursor"), message.get("limit", MAX_PAGE)
    if cursor is not None and (not isinstance(cursor, str) or len(cursor) > MAX_CURSOR):
        raise ProtocolError(f"a cursor has at most {MAX_CURSOR} characters")
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise ProtocolError(f"a page has 1 to {MAX_PAGE} entries")
    return {"path": _drive_path(message, "path") or "", "cursor": cursor, "limit": limit}


def _trash_restore(message: Mapping[str, Any]) -> dict[str, Any]:
    path, number = _drive_path(message, "path"), message.get("number")
    if number is not None and (type(number) is not int or not 1 <= number <= MAX_NUMBER):
        raise ProtocolError(f"the number of an entry must be 1 to {MAX_NUMBER}")
    if (path is None) == (number is None):
        raise ProtocolError("trash_restore needs the path or the number of an entry, not both")
    return {"path": path, "number": number, "to": _drive_path(message, "to")}


def _drive_path(message: Mapping[str, Any], field: str) -> str | None:
    """Return a path relative to the drive. Bytes that are not UTF-8 are surrogate escapes."""
    path = message.get(field)
    if path is None:
        return None
    if not isinstance(path, str) or len(path) > MAX_PATH:
        raise ProtocolError(f"a path has at most {MAX_PATH} bytes")
    try:
        size = len(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise ProtocolError("the path contains a lone surrogate") from None
    if size > MAX_PATH:
        raise ProtocolError(f"a path has at most {MAX_PATH} bytes")
    return path


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
    TRASH_LIST: _trash_list,
    TRASH_RESTORE: _trash_restore,
}
"""Requests that a box may send to the daemon, each with the check of its parameters.

`workspace {verb: mount|umount|info}`. `pin {for_s, why}`, `unpin` and `auto_suspend {on}`: the
answer is that of `life`. `life` returns what keeps the box awake (`pinned_until`, `pin_why`,
`auto_suspend`) and, for `life` alone, the box's disk in bytes (`disk_limit`, `disk_used`). `ask
{question, options}` asks the owner a question and returns its id as `{ask}`. `ask_state {ask}`
returns `{state, answer}`. `trash_list {path, cursor, limit}` returns `{entries, cursor}`, and
`trash_restore {path | number, to}` returns `{path, files, directories, missing, missing_count,
earlier_count}`; the agent accepts both from the box's root only. Paths are relative to the drive.
"""
