"""What all connections of one listener share."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Container

    from boxd.clock import Clock
    from boxd.config import Address
    from boxd.operations import Operations
    from boxd.ssh.cli.command import Console
    from boxd.ssh.connection.limits import Limits


class Guest(Protocol):
    """A connection."""

    async def close(self) -> None:
        """Ends it."""
        ...


@dataclass(slots=True)
class Hall:
    """See the module. No method but `drain` awaits."""

    operations: Operations
    clock: Clock
    limits: Limits
    fingerprint: str
    host_key: str
    """The public key of the server, one line in OpenSSH form."""
    console: Console
    """The commands for user `cli`."""
    administrators: Container[str] = frozenset()
    """Owners, at this moment, whose keys open the console of administrators."""
    shown_as: Address | None = None
    """What clients are told to type; None: the address that they reached, as at port 0."""
    preview_domain: str | None = None
    """Below which ports of boxes answer."""
    visitors: set[Guest] = field(default_factory=set)
    channels: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last channel closes."""
    draining: bool = False

    def opened(self) -> None:
        """One more channel."""
        self.channels += 1

    def closed(self) -> None:
        """One less: the client has said that it is closed, so it has all that was sent."""
        self.channels -= 1
        if not self.channels:
            self.quiet.set()

    async def drain(self, seconds: float) -> None:
        """No new channels; open ones get `seconds`, then every connection is ended."""
        self.draining = True
        self.quiet.clear()
        if self.channels and seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.quiet.wait()
        for guest in list(self.visitors):
            await guest.close()
