"""`box port`: a local port whose HTTP requests and WebSockets reach a program in a box.

The forwarder reads the head of a request, sends it to the proxy of the service with the API key,
and copies bytes from then on. Each connection carries one request.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from boxd_client.cli.output import note, print_json
from boxd_client.config import load
from boxd_client.errors import BoxError, ConnectionLost, NotFound
from boxd_client.protocol import segment

if TYPE_CHECKING:
    from boxd_client.cli.context import Context
    from boxd_client.config import Settings

MAX_HEAD = 64 * 1024
HEAD_S = 30.0
CONNECT_S = 10.0
COPY_BYTES = 64 * 1024
END = b"\r\n\r\n"
_REQUEST = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[^\s]*) HTTP/1\.[01]")
_REMOVED = frozenset({b"host", b"connection", b"authorization", b"x-api-key", b"keep-alive"})


def port(context: Context) -> int:
    """Print the preview URL of a port and forward a local port to it until Ctrl-C."""
    args = context.args
    preview: str | None = None
    try:
        preview = context.box().preview_url(args.port)
    except NotFound as error:
        if not context.client.box(args.box).exists():
            raise
        note(f"box: {error}; forwarding anyway")
    forwarder = Forwarder(load(), args.box, args.port)
    return asyncio.run(_serve(context, forwarder, preview))


async def _serve(context: Context, forwarder: Forwarder, preview: str | None) -> int:
    local = context.args.local_port
    if local is None:
        local = context.args.port
    try:
        server = await asyncio.start_server(forwarder.serve, "127.0.0.1", local, limit=MAX_HEAD)
    except OSError as error:
        text = f"cannot listen on port {local}: {error.strerror}; choose another --local-port"
        raise ConnectionLost(text) from None
    forwarder.local_port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{forwarder.local_port}/"
    if context.json:
        print_json({"url": url, "preview": preview})
    else:
        sys.stdout.write(f"{url}\n" + (f"{preview}\n" if preview else ""))
    sys.stdout.flush()
    async with server:
        await server.serve_forever()
    return 0


@dataclass
class Forwarder:
    """Forwards connections to one port of one box."""

    settings: Settings
    box: str
    port: int
    local_port: int = 0

    @property
    def prefix(self) -> bytes:
        """Return the path of the port below the host of the API."""
        base = urlsplit(self.settings.url).path
        return f"{base}/v1/boxes/{segment(self.box, 'box')}/proxy/{self.port}".encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a local program."""
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(END)
            await self._forward(head, reader, writer)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _refuse(writer, b"400 Bad Request", b"the request has no complete head\n")
        except BoxError as error:
            await _refuse(writer, b"502 Bad Gateway", f"{error}\n".encode())
        except OSError:
            return  # one side has closed its connection
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _forward(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request = self.request_head(head)
        if request is None:
            await _refuse(writer, b"400 Bad Request", b"not a request for this port\n")
            return
        remote_reader, remote_writer = await self._connect()
        try:
            remote_writer.write(request)
            sending = asyncio.create_task(_copy(reader, remote_writer))
            try:
                writer.write(self.answer_head(await remote_reader.readuntil(END)))
                await _copy(remote_reader, writer)
            finally:
                sending.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await sending
        finally:
            remote_writer.close()
            with suppress(OSError):
                await remote_writer.wait_closed()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.settings.url)
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        try:
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.open_connection(
                    parts.hostname,
                    parts.port or (443 if tls else 80),
                    ssl=tls,
                    limit=MAX_HEAD,
                )
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"cannot connect to {self.settings.url}: {error}") from error

    def request_head(self, head: bytes) -> bytes | None:
        """Return the head of a request to the service; None: the request is not for this port.

        A foreign Host means that a page of another site reached this port under its own name.
        """
        first, *lines = head[: -len(END)].split(b"\r\n")
        match = _REQUEST.fullmatch(first)
        fields = [(line.partition(b":")[0].strip().lower(), line) for line in lines]
        hosts = [line.partition(b":")[2].strip() for name, line in fields if name == b"host"]
        allowed = {f"{name}:{self.local_port}".encode() for name in ("127.0.0.1", "localhost")}
        if self.local_port == 80:
            allowed |= {b"127.0.0.1", b"localhost"}
        if match is None or len(hosts) != 1 or hosts[0].lower() not in allowed:
            return None
        upgrade = any(name == b"upgrade" for name, _ in fields)
        path = match[2] if match[2].startswith(self.prefix + b"/") else self.prefix + match[2]
        parts = [b"%b %b HTTP/1.1" % (match[1], path)]
        parts += [line for name, line in fields if name not in _REMOVED]
        parts.append(b"Host: " + urlsplit(self.settings.url).netloc.encode())
        parts.append(b"Connection: " + (b"Upgrade" if upgrade else b"close"))
        parts.append(b"Authorization: Bearer " + self.settings.key.encode())
        return b"\r\n".join(parts) + END

    def answer_head(self, head: bytes) -> bytes:
        """Return the head of an answer for the local program: paths begin at its root."""
        lines = []
        for line in head[: -len(END)].split(b"\r\n"):
            name = line.partition(b":")[0].strip().lower()
            if name == b"location":
                line = re.sub(
                    rb"^([^:]+:\s*(?:https?://[^/]+)?)" + re.escape(self.prefix), rb"\1", line
                )
            elif name == b"set-cookie":
                line = re.sub(rb"(?i)(;\s*path=)" + re.escape(self.prefix), rb"\1", line)
            lines.append(line)
        return b"\r\n".join(lines) + END


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(COPY_BYTES):
        writer.write(data)
        await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, status: bytes, text: bytes) -> None:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n" % (
        status,
        len(text),
    )
    with suppress(OSError):
        writer.write(head + b"Connection: close\r\n\r\n" + text)
        await writer.drain()
