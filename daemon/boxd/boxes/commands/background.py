"""Background commands: what a request may contain, and how users see a command."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from box_guest.shared.command_messages import MAX_OFFSET, MAX_TIMEOUT_S, SIGNALS, is_command_id
from boxd.boxes.commands.exec import ExecRequest, header_fields
from boxd.errors import BadRequest, NotFound
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from box_guest.shared.command_messages import CommandState


@dataclass(frozen=True, slots=True)
class BackgroundRequest:
    """A background command to start.

    `env` is merged over the session environment of the box. `timeout_s` None: no timeout. `stdin`:
    its input stays open for later writes. `keep_awake`: the box is not suspended automatically
    while the command runs.
    """

    cmd: str
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: int | None = None
    stdin: bool = False
    keep_awake: bool = True

    @classmethod
    def checked(
        cls, cmd: object, env: object, timeout_s: object, *, stdin: bool, keep_awake: bool
    ) -> BackgroundRequest:
        """Return a request from the values of a client; None: not given. Raises BadRequest."""
        checked = ExecRequest.checked(cmd, env, None)
        return cls(checked.cmd, checked.env, _timeout(timeout_s), stdin, keep_awake)


@dataclass(frozen=True, slots=True)
class BackgroundCommand:
    """A background command of the box with the id `box`."""

    box: str
    state: CommandState

    @property
    def id(self) -> str:
        """The id of the command, unique in its box."""
        return self.state.id

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, which all interfaces share."""
        state = self.state
        return {
            "id": state.id,
            "box": self.box,
            "cmd": state.cmd,
            "state": "running" if state.running else "exited",
            "exit_code": state.exit_code,
            "signal": state.signal,
            "pid": state.pid,
            "started": _iso_time(state.started),
            "ended": None if state.ended is None else _iso_time(state.ended),
            "output_bytes": state.output_bytes,
            "dropped_bytes": state.dropped_bytes,
            "stdin_open": state.stdin_open,
            "keep_awake": state.keep_awake,
            "timeout_s": state.timeout_s,
        }


def parse_background_header(line: bytes) -> BackgroundRequest:
    """Parse the header line of an exec that the client does not wait for. Its input follows.

    Raises BadRequest.
    """
    fields = header_fields(line)
    return BackgroundRequest.checked(
        fields.get("cmd"), fields.get("env"), fields.get("timeout_s"), stdin=True, keep_awake=True
    )


def checked_id(number: str) -> str:
    """Return the id of a command. Raises NotFound if it cannot be one."""
    if not is_command_id(number):
        raise NotFound(f"no background command {shown(number)}; list them to see their ids")
    return number


def checked_offset(text: str) -> int:
    """Return an offset in the output of a command. Raises BadRequest."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > MAX_OFFSET:
        raise BadRequest("the offset must be a whole number of bytes, 0 or more")
    return int(text)


def checked_signal(name: object) -> str:
    """Return the name of a signal, in upper case without SIG. Raises BadRequest."""
    folded = name.upper().removeprefix("SIG") if isinstance(name, str) else ""
    if folded not in SIGNALS:
        raise BadRequest(f"signal must be one of {', '.join(SIGNALS)}")
    return folded


def _timeout(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # in JSON, 60.0 is the number 60
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TIMEOUT_S:
        raise BadRequest(f"timeout_s must be a whole number from 1 to {MAX_TIMEOUT_S}")
    return value


def _iso_time(seconds: float) -> str:
    """Return a time in ISO form. The agent's clock may be wrong: years above 9999 become 9999."""
    return datetime.fromtimestamp(min(seconds, 253_402_300_799), UTC).isoformat()
