"""Clients that go on, or leave, after a refusal: the service answers others, and logs no traceback.

A refused request may have a body that nobody reads. The connection must then end, or the rest of
the body would be taken for the next request.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from tests.harness.http.rawhttp import UPGRADE
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.http.web import Web

RESET = struct.pack("ii", 1, 0)
NEXT = b"GET /healthz HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n"
UPGRADES = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE)
REFUSED = {
    "a JSON route": ("PATCH /v1/boxes", "", 405),
    "a public route": ("DELETE /healthz", "", 405),
    "a stream route": ("POST /v1/wrk/x", "", 405),
    "exec": ("PUT /v1/exec/web", "", 405),
    "MCP": ("PATCH /v1/mcp", "", 405),
    "a terminal": ("POST /v1/boxes/web/term", "", 405),
    "TRACE": ("TRACE /v1/boxes", "", 405),
    "another method": ("X /v1/boxes", "", 405),
    "no such path": ("POST /nothing", "", 404),
    "a last request": ("PATCH /v1/boxes", "Connection: close\r\n", 405),
    "two credentials": ("GET /v1/boxes", "X-Api-Key: x\r\n", 400),
    "an upgrade by POST": ("POST /v1/mcp", UPGRADES, 405),
    "an upgrade of a file": ("GET /v1/wrk/x", UPGRADES, 404),
    "an upgrade of a JSON route": ("GET /v1/boxes", UPGRADES, 404),
    "an upgrade to something else": (
        "PATCH /v1/boxes",
        "Connection: Upgrade\r\nUpgrade: h2c\r\n",
        405,
    ),
}
BODIES = {
    "no body": ("", b"", b""),
    "a whole body": ("Content-Length: 6\r\n", b"abcdef", b""),
    "a body in two parts": ("Content-Length: 6\r\n", b"abc", b"def"),
    "a body that waits to be asked for": (
        "Content-Length: 3\r\nExpect: 100-continue\r\n",
        b"",
        b"abc",
    ),
    "chunks": ("Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n"),
    "a large body": ("Content-Length: 4000000\r\n", b"x" * 2_000_000, b"x" * 2_000_000),
}
ENDS = ("goes on", "sends two requests at once", "sends no more", "leaves", "resets")


async def answers(reader: asyncio.StreamReader) -> list[int]:
    """The statuses of all answers until the connection ends; bodies are JSON or `ok`."""
    text = b""
    try:
        async with asyncio.timeout(30):
            while piece := await reader.read(65536):
                text += piece
    except ConnectionError:
        pass
    return [int(line.split()[1]) for line in text.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


async def play(web: Web, case: str, body: str, end: str) -> list[int] | None:
    """One client; the statuses that it got, or None if it left."""
    line, more, _ = REFUSED[case]
    length, now, later = BODIES[body]
    reader, writer = await web.connect()
    try:
        head = f"{line} HTTP/1.1\r\nHost: api.test\r\nX-Api-Key: {web.key}\r\n{more}{length}\r\n"
        writer.write(head.encode() + now)
        if end == "sends two requests at once":
            writer.write(later + NEXT)
            return await answers(reader)
        if end == "goes on":
            await reader.readuntil(b"\r\n\r\n")
            writer.write(later + NEXT)
            return [0, *await answers(reader)]
        if end == "sends no more":
            writer.write_eof()
            return await answers(reader)
        if end == "resets":
            linger = (socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.get_extra_info("socket").setsockopt(*linger)
            writer.transport.abort()
        return None
    finally:
        writer.close()


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refusal_leaves_no_traceback(web: Web, case: str) -> None:
    """Warnings in the log fail every test, tracebacks of the event loop among them."""
    assert web.server._server is not None
    connections = web.server._server.server_state.connections
    for body in BODIES:
        for end in ENDS:
            statuses = await play(web, case, body, end)
            if statuses is None:
                continue
            what = (body, end, statuses)
            if end == "goes on":
                # The refusal, of which the head was read, and a later one at most.
                assert statuses in ([0], [0, 200], [0, 400]), what
            else:
                # A body that is too large may be refused before the method.
                assert statuses[0] in (REFUSED[case][2], 400, 413), what
                assert set(statuses[1:]) <= {200}, what
                assert len(statuses) <= 2, what
    await until(lambda: not connections)
    assert (await web.client().get("/healthz")).status_code == 200


@pytest.mark.parametrize("stream", ["true", "false"])
async def test_bytes_behind_a_last_request_end_it(web: Web, tmp_path: Path, stream: str) -> None:
    """The client has said that nothing follows. The answer may have begun: it is cut then."""
    begun = tmp_path / "begun"
    command = f"echo x; touch {begun}; exec sleep 1000"
    reader, writer = await web.connect()
    head = (
        f"POST /v1/exec/web?stream={stream} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {len(command)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + command.encode())
    await until(begun.exists)
    if stream == "true":
        await reader.readuntil(b"event: stdout")
    writer.write(NEXT)
    statuses = await answers(reader)
    writer.close()
    assert statuses == ([] if stream == "true" else [400])
    await until(lambda: not web.lifecycle.attachments.held())
