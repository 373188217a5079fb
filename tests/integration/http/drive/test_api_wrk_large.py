"""Large files, many readers and slow clients over HTTP: memory stays where it is.

Client and service are in one process, so each figure holds both.
"""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.embedded.objectstore import EmbeddedObjectServer
from tests.harness.http.drives import MIB, body, forget_peak, http_drive, piece, resident
from tests.harness.http.web import ALICE
from wrkfs.config import StoreConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from tests.harness.http.web import Web
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

BOUND = 128 * MIB
"""Growth that is allowed: dirty bytes, cached blocks, blocks on their way, buffers, the client."""


async def check(client: httpx.AsyncClient, path: str, size: int) -> None:
    """Reads a file of `body` and compares it, with little in memory."""
    number, rest = 0, b""
    async with client.stream("GET", path) as response:
        assert response.status_code == 200
        async for some in response.aiter_raw():
            rest += some
            while len(rest) >= MIB:
                assert rest[:MIB] == piece(number)
                number, rest = number + 1, rest[MIB:]
    assert (number, rest) == (size // MIB, b"")


@pytest.mark.figure("HTTP-BIG")
@pytest.mark.timeout(180)
async def test_a_large_file_takes_constant_memory(
    volume: VolumeConfig, web: Web, figures: Figures
) -> None:
    await http_drive(web, volume)
    client = web.client()
    await client.put("/v1/wrk/warm", content=body(32 * MIB))
    await check(client, "/v1/wrk/warm", 32 * MIB)
    for _ in figures(ci=1, long=1):
        size = 10 * 1024 * MIB if figures.long else 256 * MIB
        before = forget_peak()
        put = await client.put("/v1/wrk/big", content=body(size), timeout=3600)
        assert put.status_code == 201
        writing = resident("VmHWM") - before
        await check(client, "/v1/wrk/big", size)
        reading = resident("VmHWM") - before
        print(f"{size // MIB} MiB: PUT {writing / MIB:.0f} MiB, GET {reading / MIB:.0f} MiB")
        assert max(writing, reading) < BOUND
        tail = await client.get("/v1/wrk/big", headers={"range": f"bytes={size - 10}-"})
        assert tail.content == piece(size // MIB - 1)[-10:]


@pytest.mark.timeout(120)
async def test_many_parallel_readers_share_one_bound(volume: VolumeConfig, web: Web) -> None:
    await http_drive(web, volume)
    client = web.client()
    size, files = 10 * MIB, 16
    for number in range(files):
        await client.put(f"/v1/wrk/{number}", content=body(size))
    before = forget_peak()
    await asyncio.gather(*(check(client, f"/v1/wrk/{number}", size) for number in range(files)))
    assert resident("VmHWM") - before < BOUND


async def test_clients_that_read_nothing_hold_little(volume: VolumeConfig, web: Web) -> None:
    fs = await http_drive(web, volume)
    client = web.client()
    size, clients = 96 * MIB, 24
    await client.put("/v1/wrk/f", content=body(size))
    before = forget_peak()
    writers = []
    for number in range(clients):
        reader, writer = await web.connect()
        writer.write(
            f"GET /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n"
            f"Range: bytes={number * 4 * MIB}-\r\n\r\n".encode()
        )
        assert b" 206 " in await asyncio.wait_for(reader.readline(), 30)
        writers.append(writer)
    # Two MiB each: a piece, and what the sockets' ends hold in this process.
    assert resident("VmHWM") - before < fs.cache_usage.limit + clients * 3 * MIB + 64 * MIB
    for writer in writers:
        writer.transport.abort()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of 24 MiB."""
    directory = tmp_path / "objects"
    directory.mkdir(mode=0o700)
    options = "size=24m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], check=True)
    yield directory
    subprocess.run(["umount", directory], check=True)


async def test_a_full_store_is_507_at_once_and_changes_nothing(
    small_disk: Path, volume: VolumeConfig, web: Web
) -> None:
    server = EmbeddedObjectServer(small_disk)
    try:
        endpoint = await server.start()
        access, secret = await server.issue("small")
        store = StoreConfig(
            endpoint.url, endpoint.bucket, "small", endpoint.region, access, secret.reveal()
        )
        fs = await http_drive(web, replace(volume, store=store))
        client = web.client()
        assert (await client.put("/v1/wrk/f", content=body(4 * MIB))).status_code == 201
        used = (await fs.statfs()).bytes_used
        # Retrying a full store would take a minute.
        async with asyncio.timeout(20):
            full = await client.put("/v1/wrk/f", content=body(64 * MIB))
        assert full.status_code == 507
        await check(client, "/v1/wrk/f", 4 * MIB)
        # What was committed of the body goes in the background: the answer does not wait for it.
        async with asyncio.timeout(30):
            while True:
                if (await fs.statfs()).bytes_used == used:
                    break
                await asyncio.sleep(0.01)
        assert (await client.put("/v1/wrk/small", content=b"still fits")).status_code == 201
    finally:
        fs_given = web.drives.given.pop((ALICE.owner, None), None)
        if fs_given is not None:
            await fs_given.close()
        await server.stop()
