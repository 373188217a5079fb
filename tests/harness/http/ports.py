"""Requests to ports of boxes, and WebSocket servers in them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.harness.http.web import Web


async def ask(web: Web, request: bytes) -> bytes:
    """Send bytes unchanged; return all bytes that the server sends until it closes."""
    reader, writer = await web.connect()
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


@asynccontextmanager
async def app(
    handler: Callable[[ServerConnection], Awaitable[None]], **options: object
) -> AsyncIterator[int]:
    """Run a WebSocket server in the box; yield its port."""
    settings: dict[str, Any] = {"compression": None, "max_size": None, **options}
    async with serve(handler, "127.0.0.1", 0, **settings) as server:
        yield next(iter(server.sockets)).getsockname()[1]


async def echo(server: ServerConnection) -> None:
    """Send each message back."""
    with suppress(ConnectionClosed):
        async for message in server:
            await server.send(message)
