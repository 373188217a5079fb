"""Protocol adapter only. The client's SSH agent for one session in the box."""

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


def forward_no_agent(conn: asyncssh.SSHServerConnection) -> None:
    """Refuses the client's agent on this connection: no socket for it is made anywhere."""

    async def refuse() -> bool:
        return False

    vars(conn)["create_agent_listener"] = refuse


@asynccontextmanager
async def forwarded_agent(tunnel: Tunnel, agent: str | None) -> AsyncIterator[dict[bytes, bytes]]:
    """A socket in the box that leads to the client's agent, as environment of the session.

    Empty when there is no agent. Raises Unavailable when the box makes no socket.
    """
    if agent is None:
        yield {}
        return
    path = f"{tunnel.hello.forward_dir}/agent.{secrets.token_hex(8)}"
    try:
        opening = tunnel.connection.forward_remote_path(path, agent)
        listener = await opened(opening, lambda late: late.close())
    except FAULTS as error:
        raise Unavailable(f"the box does not forward the SSH agent: {error}") from error
    try:
        yield {b"SSH_AUTH_SOCK": path.encode()}
    finally:
        listener.close()
