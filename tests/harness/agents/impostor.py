"""A test's own end of a tunnel, which replaces the agent and can send false messages."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncssh

from box_guest import protocol
from tests.harness.wait import DEADLINE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.agents.agent import LocalBox

HELLO = {"type": "hello", "version": 1, "boot": "x", "generation": 1, "forward_dir": "/run/f"}
GREETING = json.dumps(HELLO).encode() + b"\n"


class Impostor(asyncssh.SSHServer):
    """An SSH server in place of the agent. Its control channel sends scripted lines."""

    def __init__(self, lines: list[bytes]) -> None:
        self.control = ScriptedControl(lines)

    def begin_auth(self, username: str) -> bool:
        return False

    def session_requested(
        self,
    ) -> (
        asyncssh.SSHServerSession[bytes]
        | tuple[asyncssh.SSHServerChannel[bytes], asyncssh.SSHServerSession[bytes]]
    ):
        return self.control


class ScriptedControl(asyncssh.SSHServerSession[bytes]):
    """Writes its lines, records what it receives, and answers each request type from `replies`."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        self.received = b""
        self.started = False
        self.replies: dict[str, object] = {}

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self.chan = chan

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == protocol.CONTROL_SUBSYSTEM

    def session_started(self) -> None:
        for line in self.lines:
            self.chan.write(line)
        self.started = True

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self.received += data
        for line in data.splitlines():
            message = json.loads(line)
            if message["type"] in self.replies:
                answer = {"ok": True, "result": self.replies[message["type"]]}
                self.chan.write(protocol.encode({"type": "reply", "id": message["id"], **answer}))


async def dial(run_dir: Path, key: bytes, server: Impostor) -> asyncssh.SSHServerConnection:
    """Connect to the daemon as soon as it listens."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DEADLINE):
        while True:
            connecting = socket.socket(socket.AF_UNIX)
            connecting.setblocking(False)
            try:
                await loop.sock_connect(connecting, str(run_dir / protocol.TUNNEL_SOCKET))
                break
            except (ConnectionRefusedError, FileNotFoundError):
                connecting.close()
                await asyncio.sleep(0.02)
        return await asyncssh.connect_reverse(
            "daemon",
            22,
            sock=connecting,
            config=None,
            server_factory=lambda: server,
            server_host_keys=[asyncssh.import_private_key(key)],
            gss_host=None,
            encoding=None,
        )


@asynccontextmanager
async def agent_with(
    box: LocalBox, key: bytes, lines: list[bytes]
) -> AsyncIterator[tuple[asyncssh.SSHServerConnection, ScriptedControl]]:
    """Yield a connection to the box's listener that presents the given host key."""
    server = Impostor(lines)
    connection = await dial(box.run_dir, key, server)
    try:
        yield connection, server.control
    finally:
        connection.abort()
        await connection.wait_closed()


def host_key(box: LocalBox) -> bytes:
    """Return the box's own private key."""
    return (box.run_dir / protocol.HOST_KEY).read_bytes()
