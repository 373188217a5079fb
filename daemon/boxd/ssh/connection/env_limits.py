"""Protocol adapter only. The environment that a client sends for a session, bounded as it arrives.

Asyncssh keeps every variable until the session starts, which may be never. It finds the handler of
a channel request by its name, so another one is put on the channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh

from box_guest.shared.environment import MAX_VARIABLES

if TYPE_CHECKING:
    from asyncssh.packet import SSHPacket

MAX_BYTES = 128 * 1024
"""Names and values that are kept of one session."""
FLOOD = 4
"""Times the variables or bytes that are kept: who sends more is disconnected."""

_HANDLER = "_process_env_request"


class Environment:
    """Counts the variables of one session. What is too much is refused, and a flood ends all."""

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._keep = getattr(chan, _HANDLER)
        self._variables = self._bytes = self._kept = 0
        setattr(chan, _HANDLER, self._process)

    def _process(self, packet: SSHPacket) -> bool:
        """Whether the variable is taken. Raises ProtocolError, which ends the connection."""
        size = len(packet.get_remaining_payload())
        self._variables += 1
        self._bytes += size
        if self._variables > FLOOD * MAX_VARIABLES or self._bytes > FLOOD * MAX_BYTES:
            raise asyncssh.ProtocolError("too many environment variables")
        if self._variables > MAX_VARIABLES or self._kept + size > MAX_BYTES:
            return False
        self._kept += size
        return bool(self._keep(packet))
