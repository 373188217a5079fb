"""Commands over HTTP: requests, frames and results."""

from __future__ import annotations

import base64
import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import httpx

    from tests.harness.http.web import Web

STREAM = {"content-type": "application/x-svc-exec"}


@dataclass
class Ran:
    """The content of a stream."""

    stdout: bytes
    stderr: bytes
    code: int


def header(cmd: str, **fields: object) -> bytes:
    """Return a header line."""
    return json.dumps({"cmd": cmd, **fields}).encode() + b"\n"


def read_stream(text: bytes) -> Ran:
    """Parse a whole event stream strictly: only known events, and `exit` once and last."""
    found: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    assert text.endswith(b"\n\n")
    blocks = text[:-2].split(b"\n\n")
    for block in blocks[:-1]:
        if block == b": keepalive":
            continue
        event, data = block.split(b"\n")
        name = event.removeprefix(b"event: ").decode()
        raw = base64.b64decode(data.removeprefix(b"data: "), validate=True)
        assert 0 < len(raw) <= 65536
        found[name].append(raw)
    event, data = blocks[-1].split(b"\n")
    assert event == b"event: exit"
    code = json.loads(data.removeprefix(b"data: "))
    assert list(code) == ["code"]
    return Ran(b"".join(found["stdout"]), b"".join(found["stderr"]), code["code"])


async def stream(client: httpx.AsyncClient, spec: str, body: bytes, **headers: str) -> Ran:
    """Run a command in the streaming form."""
    answer = await client.post(f"/v1/exec/{spec}", content=body, headers=STREAM | headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-store"
    return read_stream(answer.content)


async def buffered(client: httpx.AsyncClient, spec: str, body: bytes) -> tuple[Ran, int]:
    """Run a command in the buffered form; return also its duration in ms."""
    path = f"/v1/exec/{spec}?stream=false"
    answer = await client.post(path, content=body, headers=STREAM)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert list(told) == ["exit_code", "stdout", "stderr", "duration_ms"]
    out, err = (base64.b64decode(told[name], validate=True) for name in ("stdout", "stderr"))
    return Ran(out, err, told["exit_code"]), told["duration_ms"]


def marked(marker: str) -> list[int]:
    """Return the processes whose environment contains the marker."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("EXEC_MARK") == marker and process.status() != "zombie":
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


async def open_exec(
    web: Web, body: bytes, query: str = "", length: str = "Transfer-Encoding: chunked"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start an exec on a raw connection. `body` is one chunk; more may follow."""
    reader, writer = await web.connect()
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    writer.write(
        f"POST /v1/exec/web{query} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n"
        f"Content-Type: application/x-svc-exec\r\n{length}\r\n\r\n".encode()
        + chunk
    )
    await writer.drain()
    return reader, writer


def silent(web: Web, content: bytes) -> Callable[[], None]:
    """Start a client that sends a request and reads no answer; return a function that ends it."""
    connection = socket.create_connection((web.address.host, web.address.port))
    connection.sendall(asking(web, content))
    return connection.close


def asking(web: Web, content: bytes) -> bytes:
    """Return a whole request that runs a command."""
    head = (
        f"POST /v1/exec/web HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n"
        "Content-Type: application/x-svc-exec\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
