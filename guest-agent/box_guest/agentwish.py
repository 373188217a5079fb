"""Whether a session asked for its client's SSH agent.

To asyncssh the agent belongs to the connection: once one session has asked for it, each later one
of a shared connection would have it. So each channel's own request is noted; asyncssh finds its
handler by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncssh
    from asyncssh.packet import SSHPacket

_HANDLER = "_process_auth_agent_req_at_openssh_dot_com_request"


class AgentWish:
    """The wish of the session of one channel."""

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """To be made with the channel."""
        self._chan = chan
        self._asked = False
        take = getattr(chan, _HANDLER)

        def process(packet: SSHPacket) -> None:
            self._asked = True
            take(packet)

        setattr(chan, _HANDLER, process)

    @property
    def path(self) -> str | None:
        """The socket that leads to the client's agent; None if it was not asked for, or was
        refused."""
        return self._chan.get_agent_path() if self._asked else None
