"""Protocol adapter only. Limits on the environment variables that a client sends for a session.

asyncssh stores every variable until the session starts, which may never happen. asyncssh looks up
the handler of a channel request by name, so this module replaces the handler on the channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh

from box_guest.shared.environment import MAX_VARIABLES

if TYPE_CHECKING:
    from asyncssh.packet import SSHPacket

MAX_BYTES = 128 * 1024
"""Maximum size of the names and values that one session may store, in bytes."""
DISCONNECT_FACTOR = 4
"""The connection ends when a client sends this many times the number, or the bytes, that may be
stored."""

_HANDLER = "_process_env_request"


class EnvironmentLimits:
    """Counts the variables of one session; rejects excess ones and ends a flood."""

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._store = getattr(chan, _HANDLER)
        self._variables = self._bytes = self._stored_bytes = 0
        setattr(chan, _HANDLER, self._process)

    def _process(self, packet: SSHPacket) -> bool:
        """Return whether the variable is stored. Raises ProtocolError to end the connection."""
        size = len(packet.get_remaining_payload())
        self._variables += 1
        self._bytes += size
        if (
            self._variables > DISCONNECT_FACTOR * MAX_VARIABLES
            or self._bytes > DISCONNECT_FACTOR * MAX_BYTES
        ):
            raise asyncssh.ProtocolError("too many environment variables")
        if self._variables > MAX_VARIABLES or self._stored_bytes + size > MAX_BYTES:
            return False
        self._stored_bytes += size
        return bool(self._store(packet))
