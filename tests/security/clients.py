"""Clients that do what OpenSSH's would not."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import asyncssh

from tests.harness.ssh.openssh import HOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.harness.ssh.frontdoor import Entrance


async def connect(
    front_door: Entrance, factory: Callable[[], asyncssh.SSHClient] | None = None
) -> asyncssh.SSHClientConnection:
    """With a key that nobody knows, or as the factory's client wants it."""
    return await asyncssh.connect(
        HOST,
        front_door.door.port,
        config=None,
        username="web",
        known_hosts=None,
        agent_path=None,
        client_keys=None if factory else [asyncssh.generate_private_key("ssh-ed25519")],
        client_factory=factory or asyncssh.SSHClient,
    )


@asynccontextmanager
async def unproved(front_door: Entrance) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A connection that has been asked for a key."""
    asked: asyncio.Future[asyncssh.SSHClientConnection] = asyncio.Future()
    over = asyncio.Event()

    class Silent(asyncssh.SSHClient):
        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            self.conn = conn

        async def public_key_auth_requested(self) -> None:
            asked.set_result(self.conn)
            await over.wait()

    connecting = asyncio.create_task(connect(front_door, Silent))
    connection = await asked
    try:
        yield connection
    finally:
        connection.abort()
        over.set()
        with suppress(asyncssh.Error, OSError):
            await connecting
