"""What a box cannot reach for a client is named, whatever the reason, and the session stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.ssh.connection.server_connection import CHANNELS_PER_CONNECTION
from tests.harness.ssh.forwards import free_port
from tests.harness.ssh.openssh import HOST

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance

SILENT = "192.0.2.77"
"""An address of the tests' own network where nobody is."""
NOWHERE = "2001:db8::1"
PATIENCE_S = 60.0


async def refusal(connection: asyncssh.SSHClientConnection, host: str, port: int) -> str:
    """What opening a connection to that target fails with."""
    with pytest.raises(asyncssh.ChannelOpenError) as refused:
        await connection.open_connection(host, port)
    return refused.value.reason


@pytest.mark.slow
async def test_targets_out_of_reach_are_named(front_door: Entrance, tmp_path: Path) -> None:
    """Reset, without a route, silent, and names that are none; all of them at once."""
    closed = free_port()
    targets = {
        (HOST, closed): f"dial {HOST}:{closed}: connection refused",
        (NOWHERE, 80): f"dial [{NOWHERE}]:80: ",
        (SILENT, 80): f"dial {SILENT}:80: ",
        ("x" * 300, 80): f"dial {'x' * 300}:80: no such address",
        ("a..b", 80): "dial a..b:80: no such address",
        ("", 80): "dial :80: no such address",
        ("nul\0byte", 80): "dial nul\\x00byte:80: no such address",
        (HOST, 0): f"dial {HOST}:0: no such address",
        (HOST, 65536): f"dial {HOST}:65536: no such address",
    }
    client = front_door.client.second("web")
    async with client as connection, asyncio.timeout(PATIENCE_S):
        session = await connection.create_process("cat")
        reasons = await asyncio.gather(*(refusal(connection, *target) for target in targets))
        for reason, words in zip(reasons, targets.values(), strict=True):
            assert reason.startswith(words), reason
        for path in ("relative", str(tmp_path / "missing"), str(tmp_path)):
            with pytest.raises(asyncssh.ChannelOpenError, match=path):
                await connection.open_unix_connection(path)
        session.stdin.write(b"intact\n")
        assert await session.stdout.readline() == b"intact\n"


async def test_refused_targets_take_no_place_of_others(front_door: Entrance) -> None:
    """More of them than a connection may have channels."""
    closed = free_port()
    client = front_door.client.second("web")
    async with client as connection, asyncio.timeout(PATIENCE_S):
        for _ in range(CHANNELS_PER_CONNECTION + 2):
            assert "connection refused" in await refusal(connection, HOST, closed)
        assert (await connection.run("echo here")).stdout == b"here\n"
