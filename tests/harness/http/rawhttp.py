"""Raw HTTP: each request has its own connection, and tests see every byte of the answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

ANSWER_S = 30.0
UPGRADE = (
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)

OF_ONE_ANSWER = (b"date:", b"x-request-id:")
"""Headers that differ between equal answers."""


@dataclass(frozen=True)
class Request:
    """A request. Method "WS" is a GET that asks for a WebSocket. `target` is sent unchanged."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    host: str = "api.test"

    def encoded(self) -> bytes:
        """Return the bytes of the request. The server must close the connection after its
        answer."""
        lines = [("Host", self.host), *self.headers]
        lines += UPGRADE if self.method == "WS" else (("Connection", "close"),)
        if self.body is not None:
            lines.append(("Content-Length", str(len(self.body))))
        verb = "GET" if self.method == "WS" else self.method
        head = f"{verb} {self.target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines)
        return head.encode("latin-1") + b"\r\n" + (self.body or b"")


@dataclass(frozen=True)
class Answer:
    """An answer. `head` is the status line and the unchanged header lines except OF_ONE_ANSWER."""

    status: int
    head: tuple[bytes, ...]
    body: bytes
    headers: dict[str, str] = field(compare=False, default_factory=dict)

    @property
    def error(self) -> str:
        """Return the text of a refusal, which must be the whole body, or "" for other answers."""
        if self.status < 400 or not self.body:
            return ""
        told = json.loads(self.body)
        assert list(told) == ["error"], told
        assert isinstance(told["error"], str)
        return told["error"]


async def ask(host: str, port: int, request: Request) -> Answer:
    """Send one request and read its whole answer; of an upgrade, only the head."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(request.encoded())
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
            status = int(first.split(b" ")[1])
            body = b"" if status == 101 else _unchunked(lines, await reader.read())
    finally:
        writer.close()
        await writer.wait_closed()
    kept = [line for line in lines if not line.lower().startswith(OF_ONE_ANSWER)]
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.decode().lower()] = value.strip().decode("latin-1")
    return Answer(status, (first, *kept), body, headers)


def _unchunked(lines: list[bytes], body: bytes) -> bytes:
    if b"transfer-encoding: chunked" not in [line.lower() for line in lines]:
        return body
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        whole, body = whole + body[:length], body[length + 2 :]
    return whole
