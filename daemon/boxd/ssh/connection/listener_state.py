"""The settings of a listener, and the state that its connections share."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from boxd.ssh.cli.registry import CLI

if TYPE_CHECKING:
    import socket
    from collections.abc import Container
    from pathlib import Path

    from boxd.clock import Clock
    from boxd.config import Address
    from boxd.names.source import Network
    from boxd.operations import Operations
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Console
    from boxd.ssh.connection.limits import ConnectionLimits


class Connection(Protocol):
    """A connection that a listener can end."""

    async def close(self) -> None:
        """End the connection and wait for its tasks."""
        ...

    def end_key(self, fingerprint: str, reason: str, spared: Principal | None) -> None:
        """End the connection if it is a login with this key, except that of `spared`."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """The operator's settings for one listener."""

    address: Address
    keys_dir: Path
    """The directory of the host key."""
    trusted: tuple[Network, ...] = ()
    """Networks whose clients get no penalties and no limit for each address."""
    console: Console = CLI
    """The commands of user `cli`."""
    administrators: Container[str] = frozenset()
    """Fingerprints of the keys that open the administrators' console. Each check reads it again."""
    public_address: Address | None = None
    """The address that users type. None means the address that the client reached; port 0 means
    the port that the client reached."""
    preview_authority: str | None = None
    """The domain whose subdomains are the ports of boxes; None: there are no such hosts."""
    bound: socket.socket | None = None
    """The bound socket of the address; None: the listener binds one."""


@dataclass(slots=True)
class ListenerState:
    """The state that all connections of one listener share. No method but `drain` awaits."""

    operations: Operations
    settings: ListenerSettings
    clock: Clock
    limits: ConnectionLimits
    fingerprint: str
    host_key: str
    """The public key of the server, one line in OpenSSH form."""
    connections: set[Connection] = field(default_factory=set)
    channels: int = 0
    """The number of open channels."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last channel closes."""
    draining: bool = False
    """The listener accepts no new connections and channels."""

    def channel_opened(self) -> None:
        """Count a new channel."""
        self.channels += 1

    def channel_closed(self) -> None:
        """Count a closed channel. The client has confirmed the close, so it has all output."""
        self.channels -= 1
        if not self.channels:
            self.idle.set()

    def end_key(self, fingerprint: str, reason: str, spared: Principal | None) -> None:
        """End the connections with a key, and give their clients the reason."""
        for connection in list(self.connections):
            connection.end_key(fingerprint, reason, spared)

    async def drain(self, seconds: float) -> None:
        """Accept no new channels, give open ones `seconds`, then end every connection."""
        self.draining = True
        self.idle.clear()
        if self.channels and seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.idle.wait()
        for connection in list(self.connections):
            await connection.close()
