"""The guest socket: serves the `box-guest` CLI with the JSON lines of `box_guest.protocol`.

Protocol adapter only. A connection carries any number of requests; each gets one answer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from box_guest.control import oom
from box_guest.errors import GuestError, RequestFailed, TunnelDown

if TYPE_CHECKING:
    from pathlib import Path

    from box_guest.config import AgentConfig
    from box_guest.control.link import DaemonLink

logger = logging.getLogger(__name__)

MAX_CLIENTS = 32
"""Maximum number of concurrent connections; the agent closes further ones at once."""
ROOT = 0
_CREDENTIALS = struct.Struct("3i")
"""Process id, user id and group id, as SO_PEERCRED returns them."""


class ControlServer:
    """Serves the guest socket. Every user in the box may connect.

    Requests about removed files are for root only. The kernel reports the user of a connection.
    """

    def __init__(self, path: Path, config: AgentConfig, link: DaemonLink) -> None:
        self._path = path
        self._config = config
        self._link = link
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Replaces a socket that a previous agent left. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._path))
            self._path.chmod(0o666)
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listener, limit=protocol.MAX_LINE
            )
        except BaseException:
            listener.close()
            raise

    async def close(self) -> None:
        """Stop listening and disconnect the clients."""
        if self._server is None:
            return
        self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._server.wait_closed()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._clients) >= MAX_CLIENTS:
            writer.close()
            return
        self._clients.add(task)
        try:
            while line := await reader.readline():
                answer = await self._answer(protocol.decode(line), _user_id(writer))
                writer.write(protocol.encode(answer))
                await writer.drain()
        except (protocol.ProtocolError, ValueError, ConnectionError) as error:
            logger.info("dropped a client of the guest socket: %s", error)
        except asyncio.CancelledError:
            logger.debug("the guest socket closes")
        finally:
            self._clients.discard(task)
            writer.close()

    async def _answer(self, message: dict[str, Any], user_id: int) -> dict[str, Any]:
        answer: dict[str, Any] = {"type": "reply", "id": message.get("id")}
        try:
            return {**answer, "ok": True, "result": await self._do(message, user_id)}
        except GuestError as error:
            return {**answer, "ok": False, "error": str(error)}

    async def _do(self, message: dict[str, Any], user_id: int) -> dict[str, Any]:
        kind = message["type"]
        if kind == protocol.INFO:
            return await self._info()
        if kind not in protocol.REQUESTS:
            raise RequestFailed(f"unknown request {kind!r}")
        if kind in protocol.TRASH and user_id != ROOT:
            # The list has all names, and a restore writes to any directory.
            raise RequestFailed(
                "only root can list and restore removed files; run the command as root"
            )
        try:
            # Check here too: a malformed request would cost the box its tunnel.
            parameters = protocol.request_parameters(message)
        except protocol.ProtocolError as error:
            raise RequestFailed(str(error)) from None
        return await self._link.request(kind, **parameters)

    async def _info(self) -> dict[str, Any]:
        own = {
            "id": self._config.box_id,
            "name": self._config.name,
            "hostname": self._config.hostname,
            "oom_kills": await asyncio.to_thread(oom.kills),
        }
        try:
            life = await self._link.request(protocol.LIFE)
        except TunnelDown:
            return {**own, "tunnel": "down"}
        except RequestFailed as error:
            life = {"life": f"unknown: {error}"}
        return {**own, "tunnel": "up", **life}


def _user_id(writer: asyncio.StreamWriter) -> int:
    """Return the user that opened a connection, as this process's user namespace numbers it."""
    connection = writer.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user_id, _ = _CREDENTIALS.unpack(credentials)
    return int(user_id)
