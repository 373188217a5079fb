"""Background commands as users see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from box_guest.shared.command_messages import CommandState


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
            "started": _time(state.started),
            "ended": None if state.ended is None else _time(state.ended),
            "output_bytes": state.output_bytes,
            "dropped_bytes": state.dropped_bytes,
            "stdin_open": state.stdin_open,
            "keep_awake": state.keep_awake,
            "timeout_s": state.timeout_s,
        }


def _time(seconds: float) -> str:
    """Return a time in ISO form. The agent's clock may be wrong: years above 9999 become 9999."""
    return datetime.fromtimestamp(min(seconds, 253_402_300_799), UTC).isoformat()
