"""Records whether a session requested its client's SSH agent.

asyncssh stores the agent per connection: once one session has requested it, every later session of
a shared connection would get it. So this module records each channel's own request. asyncssh finds
the handler of a channel request by its name, so a handler is set on the channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncssh
    from asyncssh.packet import SSHPacket

_HANDLER = "_process_auth_agent_req_at_openssh_dot_com_request"


class AgentRequest:
    """The agent forwarding request of one channel's session."""

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """Must be created together with the channel."""
        self._chan = chan
        self._requested = False
        take = getattr(chan, _HANDLER)

        def process(packet: SSHPacket) -> None:
            self._requested = True
            take(packet)

        setattr(chan, _HANDLER, process)

    @property
    def path(self) -> str | None:
        """Path of the socket of the client's agent, or None.

        None means that the session did not request it, or that the client's request was rejected.
        """
        return self._chan.get_agent_path() if self._requested else None
