"""Protocol adapter only. Forwards the client's SSH agent to one session in the box."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from boxd.errors import Unavailable
from boxd.tunnel.channel import FAULTS
from boxd.tunnel.opening import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncssh

    from boxd.tunnel.channel import Tunnel


def refuse_agent_forwarding(conn: asyncssh.SSHServerConnection) -> None:
    """Reject the client's agent on this connection, so that no socket is created for it."""

    async def refuse() -> bool:
        return False

    vars(conn)["create_agent_listener"] = refuse


@asynccontextmanager
async def forwarded_agent(
    tunnel: Tunnel, agent_path: str | None
) -> AsyncIterator[dict[bytes, bytes]]:
    """Create a socket in the box that leads to the client's agent; yield the variable for it.

    `agent_path` is the agent's socket on this host; None yields an empty environment. Raises
    Unavailable if the box does not create the socket.
    """
    if agent_path is None:
        yield {}
        return
    path = f"{tunnel.hello.forward_dir}/agent.{secrets.token_hex(8)}"
    try:
        opening = tunnel.connection.forward_remote_path(path, agent_path)
        listener = await opened(opening, lambda listener: listener.close())
    except FAULTS as error:
        raise Unavailable(f"the box does not forward the SSH agent: {error}; try again") from error
    try:
        yield {b"SSH_AUTH_SOCK": path.encode()}
    finally:
        listener.close()
