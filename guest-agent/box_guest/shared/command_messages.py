"""Messages about background commands, on the subsystem `box-commands`.

A channel carries one request (`box_guest.shared.requests`):

- `start {cmd, timeout_s, keep_awake, stdin}`: the environment of the channel is that of the
  command. Answers `{command}`.
- `list {}`: answers `{commands}`, in the order of their start.
- `show {id}`: answers `{command}`.
- `output {id, offset, limit, follow}`: answers `{command}`. Frames follow: output from `offset` on,
  and the frame END, which is the last one. With `follow`, END comes when the command has ended.
- `write {id, close}`: the bytes after the line are input of the command, up to the end of the
  channel's input. The answer `{command}` comes when the command has accepted them.
- `signal {id, signal}`: answers `{command}`.
- `remove {id}`: ends the command and forgets it. Answers `{command}`, its last state.

A frame is its kind (one byte), the size of its content (four bytes, big-endian) and the content. An
offset counts bytes of both streams in the order in which the agent read them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from box_guest.shared.requests import MalformedMessage, boolean, decode_line, integer

if TYPE_CHECKING:
    from collections.abc import Iterator

START = "start"
LIST = "list"
SHOW = "show"
OUTPUT = "output"
WRITE = "write"
SIGNAL = "signal"
REMOVE = "remove"

MAX_COMMANDS = 64
"""Maximum number of background commands that a box stores. The oldest ended ones are forgotten."""
CAPACITY = 16 << 20
"""Bytes of output that the box stores for each command. The oldest bytes are dropped."""
MAX_TIMEOUT_S = 7 * 24 * 3600
"""Maximum timeout of a background command, in seconds."""
SHOWN_COMMAND = 1000
"""Maximum length of the command in a description, in characters; a longer one is cut."""
MAX_OFFSET = (1 << 63) - 1
"""Maximum offset of output, and of every count of bytes."""
TIMEOUT_CODE = 124
"""Exit code of a command that its timeout ended."""
SIGNALS = ("HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "TSTP", "WINCH")
"""Signals that a request may send."""

STDOUT, STDERR, DROPPED, END = 1, 2, 3, 4
"""Kinds of frames: bytes of a stream; a gap (its size in eight bytes); the last frame, which is a
description of the command as JSON."""
MAX_FRAME = 64 * 1024
"""Maximum size of the content of a frame, in bytes."""

_HEAD = struct.Struct(">BI")
_GAP = struct.Struct(">Q")
_ID = re.compile(r"[0-9a-f]{16}")
_SIGNAL_NAME = re.compile(r"[A-Z0-9+-]{1,16}")
_LATEST = 1 << 40
"""Bound for times, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class CommandState:
    """Description of a background command.

    `exit_code` is that of a shell: 128 + n after signal n, 124 after the timeout. `signal` is the
    name of the signal that ended it, without SIG. `started` and `ended` are seconds since the
    epoch. `output_bytes` counts all output, `dropped_bytes` what is no longer stored.
    """

    id: str
    cmd: str
    running: bool
    exit_code: int | None
    signal: str | None
    pid: int
    started: float
    ended: float | None
    output_bytes: int
    dropped_bytes: int
    stdin_open: bool
    keep_awake: bool
    timeout_s: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the description as the messages carry it."""
        return asdict(self)


def command_state(value: object) -> CommandState:
    """Return a checked description. Raises MalformedMessage."""
    if not isinstance(value, dict):
        raise MalformedMessage("the description of a command is not an object")
    cmd, signal, code = value.get("cmd"), value.get("signal"), value.get("exit_code")
    if not isinstance(cmd, str) or len(cmd) > SHOWN_COMMAND:
        raise MalformedMessage("the description of a command has no command")
    if signal is not None and not (isinstance(signal, str) and _SIGNAL_NAME.fullmatch(signal)):
        raise MalformedMessage("the description of a command has an invalid signal")
    timeout_s, ended = value.get("timeout_s"), value.get("ended")
    running = boolean(value.get("running"))
    if running is not (code is None) or running is not (ended is None):
        raise MalformedMessage("the description of a command contradicts itself")
    return CommandState(
        id=command_id(value.get("id")),
        cmd=cmd.encode("utf-8", "replace").decode("utf-8"),
        running=running,
        exit_code=None if code is None else integer(code, 0, 255),
        signal=signal,
        pid=integer(value.get("pid"), 1, 1 << 31),
        started=_time(value.get("started")),
        ended=None if ended is None else _time(ended),
        output_bytes=integer(value.get("output_bytes"), 0, MAX_OFFSET),
        dropped_bytes=integer(value.get("dropped_bytes"), 0, MAX_OFFSET),
        stdin_open=boolean(value.get("stdin_open")),
        keep_awake=boolean(value.get("keep_awake")),
        timeout_s=None if timeout_s is None else integer(timeout_s, 1, MAX_TIMEOUT_S),
    )


def command_states(value: object) -> list[CommandState]:
    """Return checked descriptions, at most MAX_COMMANDS. Raises MalformedMessage."""
    if not isinstance(value, list) or len(value) > MAX_COMMANDS:
        raise MalformedMessage("the list of commands is not valid")
    return [command_state(item) for item in value]


def command_id(value: object) -> str:
    """Return the id of a command. Raises MalformedMessage for a value that cannot be one."""
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise MalformedMessage("the id of a command has 16 hexadecimal digits")
    return value


def is_command_id(text: str) -> bool:
    """Return whether a text can be the id of a command."""
    return _ID.fullmatch(text) is not None


def frame(kind: int, content: bytes) -> bytes:
    """Return a frame. Raises MalformedMessage if the content is longer than MAX_FRAME."""
    if len(content) > MAX_FRAME:
        raise MalformedMessage(f"a frame has {len(content)} bytes; at most {MAX_FRAME} are allowed")
    return _HEAD.pack(kind, len(content)) + content


def gap(size: int) -> bytes:
    """Return the frame of a gap of `size` bytes."""
    return frame(DROPPED, _GAP.pack(size))


class Frames:
    """Splits bytes into frames, with at most one incomplete frame in memory."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield kind and content of the frames that the next bytes complete.

        Raises MalformedMessage for an unknown kind or a frame that is too long.
        """
        self._partial += data
        while len(self._partial) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._partial)
            if kind not in (STDOUT, STDERR, DROPPED, END) or size > MAX_FRAME:
                raise MalformedMessage("the box sent a frame that is not valid")
            if len(self._partial) < _HEAD.size + size:
                return
            content = bytes(self._partial[_HEAD.size : _HEAD.size + size])
            del self._partial[: _HEAD.size + size]
            yield kind, content


def gap_size(content: bytes) -> int:
    """Return the size of a gap from the content of its frame. Raises MalformedMessage."""
    if len(content) != _GAP.size:
        raise MalformedMessage("the box sent a gap without a size")
    (size,) = _GAP.unpack(content)
    return integer(size, 1, MAX_OFFSET)


def end_state(content: bytes) -> CommandState:
    """Return the description in the frame END. Raises MalformedMessage."""
    return command_state(decode_line(content))


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LATEST:
        raise MalformedMessage("a time is not valid")
    return float(value)
