"""Applications that run in boxes while tests look at them."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.http.caddy import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from tests.harness.http.site import Site

INSTALLED = ROOT / ".build/apps"
PYTHON = INSTALLED / "python/bin/python"
SOURCES = Path(__file__).parent / "apps"
START_S = 40.0
"""In which an application must listen, also on a busy machine."""


@asynccontextmanager
async def running(site: Site, box: str, port: int, command: str) -> AsyncIterator[str]:
    """A command in a box that serves a port; gives the box's id. It ends with the context."""
    if not PYTHON.exists():
        raise RuntimeError(f"{PYTHON} is missing: run scripts/apps")
    box_id = await site.box(box)
    said = bytearray()
    async with _begun(site, box, command) as answer:
        listening = asyncio.create_task(_reader(answer, said))
        try:
            await _listens(port, listening, said)
            yield box_id
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def run(site: Site, box: str, command: str) -> str:
    """The output of a command in a box, which must succeed."""
    async with _begun(site, box, command, stream=False) as answer:
        await answer.aread()
    done = answer.json()
    assert done["exit_code"] == 0, done
    return base64.b64decode(done["stdout"]).decode()


@asynccontextmanager
async def _begun(
    site: Site, box: str, command: str, *, stream: bool = True
) -> AsyncIterator[httpx.Response]:
    client = site.client(authorization=f"Bearer {site.web.key}")
    place = f"{site.api}/v1/exec/{box}?stream={json.dumps(stream)}"
    kind = {"content-type": "text/plain"}
    async with client.stream("POST", place, content=command.encode(), headers=kind) as answer:
        yield answer


async def _reader(answer: httpx.Response, said: bytearray) -> None:
    """Keeps what a command says, until it ends."""
    async for line in answer.aiter_lines():
        if line.startswith("data: ") and not line.startswith("data: {"):
            said += base64.b64decode(line.removeprefix("data: "))


async def _listens(port: int, listening: asyncio.Task[None], said: bytearray) -> None:
    try:
        async with asyncio.timeout(START_S):
            while not listening.done():
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    await writer.wait_closed()
                    return
    except TimeoutError:
        pass
    raise RuntimeError(f"nothing listens on port {port}: {said.decode(errors='replace')}")
