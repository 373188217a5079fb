"""ECHO: terminals over WebSocket again and again. Every byte in its order, every exit code."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.client import connect

from tests.harness.http.terminals import QUIET
from tests.harness.http.web import ALICE
from tests.harness.http.websocket import BINARY, CLOSE, connected
from tests.harness.wait import until

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from tests.harness.http.web import Web
    from tests.plugins.figures import Figures

pytestmark = [pytest.mark.figure("ECHO"), pytest.mark.timeout(300)]

TYPED = 25
"""Lines that are typed ahead, of which each is a message of its own."""
PATIENCE_S = 60


async def _until(socket: ClientConnection, last: bytes) -> bytes:
    """Output up to what ends with `last`, and what came along with it."""
    output = b""
    async with asyncio.timeout(PATIENCE_S):
        while last not in output:
            part = await socket.recv()
            assert isinstance(part, bytes), part
            output += part
    return output


async def test_what_is_typed_into_one_terminal(web: Web, figures: Figures) -> None:
    await web.operations.boxes.up(ALICE, "web")
    async with connect(f"ws://{web.address}/v1/boxes/web/term?key={web.key}") as socket:
        await socket.send(QUIET)
        await _until(socket, b"ready\r\n")
        for number in figures(ci=1000 // TYPED, long=10_000 // TYPED):
            lines = range(number * TYPED, (number + 1) * TYPED)
            for line in lines:
                await socket.send(b"echo ok-%d\n" % line)
            wanted = b"".join(b"ok-%d\r\n" % line for line in lines)
            assert await _until(socket, b"ok-%d\r\n" % lines[-1]) == wanted
        await socket.send(b"exit 3\n")
        async with asyncio.timeout(PATIENCE_S):
            assert [part async for part in socket] == []
        assert (socket.close_code, socket.close_reason) == (1000, "exit 3")


async def test_one_terminal_after_another(web: Web, figures: Figures) -> None:
    await web.operations.boxes.up(ALICE, "web")
    # Most of the time of each is the profile of its login shell.
    for number in figures(ci=15, long=10_000):
        terminal = await connected(web, f"/v1/boxes/web/term?key={web.key}")
        # What is typed is shown as well: quotes keep it apart from what comes out.
        terminal.send(BINARY, b"echo o''k-%d; exit 3\n" % number)
        output, code, reason = await terminal.until_close()
        assert (code, reason) == (1000, "exit 3")
        assert output.count(b"ok-%d\r\n" % number) == 1, output
        terminal.send(CLOSE, struct.pack(">H", 1000))
        async with asyncio.timeout(PATIENCE_S):
            assert await terminal.reader.read() == b""
        terminal.close()
    await until(lambda: web.lifecycle.attachments.held() == set())
