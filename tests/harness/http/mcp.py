"""Raw clients of the MCP service: JSON-RPC messages over a WebSocket.

They show messages that the protocol's own libraries would not send, or would hide.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from websockets.asyncio.client import ClientConnection

    from tests.harness.http.web import Web

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

LEGACY = "2025-11-25"
MODERN = "2026-07-28"
_META = "io.modelcontextprotocol/"
INITIALIZE = {
    "protocolVersion": LEGACY,
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def envelope(**more: object) -> dict[str, Any]:
    """Return the `_meta` of a request without a handshake."""
    return {_META + "protocolVersion": MODERN, _META + "clientCapabilities": {}, **more}


class Talk:
    """One connection. It sorts messages: answers by id, notifications in order."""

    def __init__(self, socket: ClientConnection, *, modern: bool = False) -> None:
        self.socket = socket
        self.modern = modern
        self.told: list[dict[str, Any]] = []
        """Received notifications."""
        self._answers: dict[object, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for text in self.socket:
            message = json.loads(text)
            if "method" in message:
                self.told.append(message)
            else:
                self.answer(message.get("id")).set_result(message)
            self._news.set()

    def answer(self, number: object) -> asyncio.Future[dict[str, Any]]:
        """Return the future of the answer to a request."""
        return self._answers.setdefault(number, asyncio.get_running_loop().create_future())

    async def send(self, message: object) -> None:
        """Send a message; anything but text is encoded as JSON first."""
        await self.socket.send(message if isinstance(message, str | bytes) else json.dumps(message))

    async def begin(self, method: str, params: dict[str, Any] | None = None) -> int:
        """Send a request; return its id."""
        self._number += 1
        given = dict(params or {})
        if self.modern:
            given["_meta"] = envelope() | given.get("_meta", {})
        body = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": given}
        await self.send(body)
        return self._number

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request; return its whole answer."""
        number = await self.begin(method, params)
        async with asyncio.timeout(30):
            return await self.answer(number)

    async def result(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request that succeeds; return its result."""
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    async def error(self, method: str, params: dict[str, Any] | None = None) -> tuple[int, str]:
        """Send a request that fails; return the code and the text of its error."""
        answer = await self.ask(method, params)
        assert "error" in answer, answer
        return answer["error"]["code"], answer["error"]["message"]

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification."""
        body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        await self.send(body if params is None else body | {"params": params})

    async def open(self, version: str = LEGACY) -> dict[str, Any]:
        """Do the handshake."""
        found = await self.result("initialize", INITIALIZE | {"protocolVersion": version})
        await self.notify("notifications/initialized")
        return found

    async def call(self, name: str, /, **arguments: object) -> dict[str, Any]:
        """Call a tool; return its result. Its two forms must be equal."""
        found = await self.result("tools/call", {"name": name, "arguments": arguments})
        assert not found.get("isError"), found
        assert json.loads(found["content"][0]["text"]) == found["structuredContent"]
        shown: dict[str, Any] = found["structuredContent"]
        return shown

    async def refusal(self, name: str, /, **arguments: object) -> str:
        """Call a tool that fails; return the text of the error."""
        found = await self.result("tools/call", {"name": name, "arguments": arguments})
        assert found["isError"] is True, found
        text: str = found["content"][0]["text"]
        return text

    def updates(self) -> list[str]:
        """Return the resources whose changes the service has reported."""
        return [
            one["params"]["uri"]
            for one in self.told
            if one["method"] == "notifications/resources/updated"
        ]

    async def until_told(self, wanted: Callable[[], object]) -> None:
        """Wait for a notification that makes `wanted()` true."""
        async with asyncio.timeout(30):
            while not wanted():
                self._news.clear()
                await self._news.wait()

    async def closed(self) -> tuple[int, str]:
        """Wait for the end; return close code and reason."""
        async with asyncio.timeout(30):
            await self.socket.wait_closed()
        return self.socket.close_code or 0, self.socket.close_reason or ""

    async def close(self) -> None:
        """Close the connection."""
        await self.socket.close()
        await asyncio.gather(self._reading, return_exceptions=True)


@asynccontextmanager
async def talk(
    web: Web, key: str | None = None, *, modern: bool = False, opened: bool = True
) -> AsyncIterator[Talk]:
    """Yield a connection. With `opened` it has done the handshake, if the protocol has one."""
    headers = {"authorization": f"Bearer {key or web.key}"}
    url = f"ws://{web.address}/v1/mcp"
    async with connect(url, additional_headers=headers, max_size=None) as socket:
        client = Talk(socket, modern=modern)
        try:
            if opened and not modern:
                await client.open()
            yield client
        finally:
            await client.close()
