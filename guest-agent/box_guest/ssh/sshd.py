"""The agent's SSH server for the daemon: which requests it serves, and by which handler.

Protocol adapter only. A confidential box serves the daemon only the control channel, and
connections to the box's own SSH server (`relayd`), whose bytes the daemon cannot read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

import asyncssh
from asyncssh.constants import OPEN_ADMINISTRATIVELY_PROHIBITED

from box_guest import protocol
from box_guest.process import accounts
from box_guest.process.process import CommandSpec, session_env
from box_guest.shared.backpressure import Backpressure
from box_guest.shared.command_bytes import take_any_command
from box_guest.shared.wire import send_no_padding
from box_guest.ssh import forward
from box_guest.ssh.command_session import CommandRequestSession
from box_guest.ssh.sessions import BoxSession, CommandSession
from box_guest.ssh.watch_session import WatchRequestSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from box_guest.control.link import DaemonLink
    from box_guest.ssh.relayd import Relay
    from box_guest.ssh.request_session import RequestSession
    from box_guest.ssh.sessions import Services

    ServerChannel = asyncssh.SSHServerChannel[bytes]

logger = logging.getLogger(__name__)

_REQUESTS: dict[str, type[RequestSession]] = {
    protocol.COMMANDS_SUBSYSTEM: CommandRequestSession,
    protocol.WATCH_SUBSYSTEM: WatchRequestSession,
}
"""Subsystems for one request each, with their sessions."""


class BoxServer(asyncssh.SSHServer):
    """One tunnel: sessions and forwards of the box. Only the daemon's key can authenticate."""

    def __init__(self, services: Services, relay: Relay | None) -> None:
        """`relay` is the SSH server of a confidential box."""
        self._services = services
        self._relay = relay
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Note the connection and set its back-pressure."""
        self._connection = conn
        Backpressure(conn)
        send_no_padding(conn)

    def session_requested(
        self,
    ) -> bool | tuple[ServerChannel, asyncssh.SSHServerSession[bytes]]:
        """Open a session channel, restricted to the control channel if the box is confidential."""
        if self._connection is None:
            return False
        chan = self._connection.create_server_channel()
        take_any_command(chan)
        kind = TunnelSession if self._relay is None else ConfidentialSession
        return chan, kind(self._services)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]] | asyncssh.SSHTCPSession[bytes]:
        """Dial a TCP target inside the box. Raises ChannelOpenError.

        A confidential box accepts only its own SSH server as the target.
        """
        if self._relay is not None:
            if dest_host != protocol.RELAY_HOST:
                raise _sealed()
            return self._relay.connection()
        # A forwarder acts as the session, as in asyncssh itself.
        return cast("Awaitable[asyncssh.SSHTCPSession[bytes]]", forward.dial(dest_host, dest_port))

    def unix_connection_requested(
        self, dest_path: str
    ) -> Awaitable[asyncssh.SSHUNIXSession[bytes]]:
        """Dial a Unix socket inside the box. Raises ChannelOpenError if the box is confidential."""
        if self._relay is not None:
            raise _sealed()
        return cast("Awaitable[asyncssh.SSHUNIXSession[bytes]]", forward.dial_unix(dest_path))

    async def unix_server_requested(self, listen_path: str) -> asyncssh.SSHListener | bool:
        """Offer a store path to the mount, or listen on a socket for a forwarded SSH agent.

        Returns False if the path is not allowed.
        """
        if self._connection is None:
            return False
        if listen_path in (protocol.DRIVE_META, protocol.DRIVE_BLOCKS):
            return self._services.gate.offered(self._connection, listen_path)
        if self._relay is not None:
            return False
        return await self._services.forwards.listen(self._connection, listen_path)


class TunnelSession(BoxSession):
    """One session channel of the tunnel: the daemon's own, or one that it opens for a client."""

    def subsystem_requested(self, subsystem: str) -> bool:
        """Accept the control channel (one at a time), the daemon's other subsystems, and sftp."""
        if subsystem == protocol.CONTROL_SUBSYSTEM:
            return not self.services.link.up
        if subsystem == protocol.HANDOVER_SUBSYSTEM or subsystem in _REQUESTS:
            return True
        return super().subsystem_requested(subsystem)

    def choose(self, chan: ServerChannel) -> asyncssh.SSHServerSession[bytes]:
        """Return the handler for the request that the daemon has made."""
        if chan.get_subsystem() == protocol.CONTROL_SUBSYSTEM:
            return ControlSession(self.services.link)
        if (request := _REQUESTS.get(chan.get_subsystem() or "")) is not None:
            return request(self.services)
        if chan.get_subsystem() == protocol.HANDOVER_SUBSYSTEM:
            config = self.services.config
            account = accounts.find(config.user)
            env = session_env(account, config, self.sent(chan))
            spec = CommandSpec(account, None, env, None, sealed_for=config.box_id)
            return CommandSession(self.services, spec)
        return super().choose(chan)


class ConfidentialSession(TunnelSession):
    """A session channel of a confidential box's tunnel: only the control channel is allowed."""

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """Reject a terminal."""
        return False

    def shell_requested(self) -> bool:
        """Reject a shell."""
        return False

    def exec_requested(self, command: str) -> bool:
        """Reject a command."""
        return False

    def subsystem_requested(self, subsystem: str) -> bool:
        """Accept the control channel only."""
        return subsystem == protocol.CONTROL_SUBSYSTEM and super().subsystem_requested(subsystem)


class ControlSession(asyncssh.SSHServerSession[bytes]):
    """The control channel: passes lines to the link; a malformed one ends the tunnel."""

    def __init__(self, link: DaemonLink) -> None:
        self._link = link
        self._chan: ServerChannel | None = None

    def connection_made(self, chan: ServerChannel) -> None:
        """Note the channel."""
        self._chan = chan

    def session_started(self) -> None:
        """Attach the link to this channel, or exit with status 1 if another one is attached."""
        if self._chan is not None and not self._link.attach(self._chan.write):
            self._chan.exit(1)
            self._chan = None

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Pass bytes to the link; abort the tunnel if they are malformed."""
        if self._chan is None:
            return
        try:
            self._link.receive(data)
        except protocol.ProtocolError as error:
            logger.error("the daemon sent a malformed message on the control channel: %s", error)
            self._chan.get_connection().abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Detach the link."""
        if self._chan is not None:
            self._link.detach()


def _sealed() -> asyncssh.ChannelOpenError:
    return asyncssh.ChannelOpenError(OPEN_ADMINISTRATIVELY_PROHIBITED, "the box is confidential")
