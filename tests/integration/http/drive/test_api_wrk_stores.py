"""The drive over HTTP on a real PostgreSQL and a real object server.

`volume` is asked for before `web`, so that the drive is closed before its volume is removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.harness.http.drives import real_drive
from tests.harness.wait import until
from wrkfs.errors import NotFound
from wrkfs.fs import Filesystem
from wrkfs.types import ROOT_INO
from wrkfs.upkeep import gc, trash

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from tests.harness.http.web import Web
    from tests.harness.servers.objectserver import ObjectServer
    from wrkfs.config import VolumeConfig
    from wrkfs.handle import FileHandle

MIB = 1 << 20


async def sha256_of(client: httpx.AsyncClient, path: str) -> str:
    """Digest of what a GET gives, read piece by piece."""
    digest = hashlib.sha256()
    async with client.stream("GET", path) as response:
        assert response.status_code == 200
        async for piece in response.aiter_raw():
            digest.update(piece)
    return digest.hexdigest()


async def test_files_of_all_sizes(volume: VolumeConfig, web: Web) -> None:
    await real_drive(web, volume)
    client = web.client()
    for size in (0, 1, 65_536, 65_537, 4 * MIB - 1, 4 * MIB + 1, 70 * MIB):
        data = os.urandom(min(size, MIB)) * max(1, size // MIB) + bytes(size % MIB)
        data = data[:size]
        tag = (await client.put(f"/v1/wrk/d/{size}", content=data)).headers["etag"]
        got = await client.head(f"/v1/wrk/d/{size}")
        assert (got.headers["content-length"], got.headers["etag"]) == (str(size), tag)
        assert await sha256_of(client, f"/v1/wrk/d/{size}") == hashlib.sha256(data).hexdigest()
        if size > 100:
            part = await client.get(f"/v1/wrk/d/{size}", headers={"range": "bytes=-100"})
            assert part.content == data[-100:]
    listing = (await client.get("/v1/wrk/d")).json()["entries"]
    assert {entry["name"]: entry["size"] for entry in listing} == {
        str(size): size for size in (0, 1, 65_536, 65_537, 4 * MIB - 1, 4 * MIB + 1, 70 * MIB)
    }


async def test_what_one_session_wrote_another_one_reads(volume: VolumeConfig, web: Web) -> None:
    await real_drive(web, volume)
    client = web.client()
    other = await Filesystem.connect(volume)
    try:
        for number in range(50):
            content = b"round %d" % number
            assert (await client.put("/v1/wrk/f", content=content)).status_code in (201, 204)
            attr = await other.lookup(ROOT_INO, b"f")
            handle = await other.open(attr.ino, os.O_RDWR)
            assert await handle.read(0, 100) == content
            await handle.write(0, b"R")
            await handle.close()
            assert (await client.get("/v1/wrk/f")).content == b"R" + content[1:]
    finally:
        await other.close()


@pytest.mark.promise("V4")
async def test_concurrent_puts_leave_one_whole_file(volume: VolumeConfig, web: Web) -> None:
    fs = await real_drive(web, volume)
    client = web.client()
    for round_ in range(3):
        bodies = [bytes([n]) * (100_000 * n + round_) for n in range(1, 9)]
        answers = await asyncio.gather(
            *(client.put(f"/v1/wrk/r{round_}/f", content=one) for one in bodies)
        )
        assert sorted(answer.status_code for answer in answers) == [201] + [204] * 7
        got = await client.get(f"/v1/wrk/r{round_}/f")
        assert got.headers["etag"] == answers[bodies.index(got.content)].headers["etag"]
    assert (await client.delete("/v1/wrk/r0")).status_code == 204
    assert len(await fs.readdir(ROOT_INO, 0, 100)) == 2


@pytest.mark.promise("V4")
async def test_one_of_many_that_may_only_create_does(volume: VolumeConfig, web: Web) -> None:
    await real_drive(web, volume)
    client = web.client()
    headers = {"if-none-match": "*"}
    answers = await asyncio.gather(
        *(client.put("/v1/wrk/lock", content=b"%d" % n, headers=headers) for n in range(10))
    )
    assert sorted(answer.status_code for answer in answers) == [201] + [412] * 9
    winner = next(n for n, answer in enumerate(answers) if answer.status_code == 201)
    assert (await client.get("/v1/wrk/lock")).content == b"%d" % winner


@pytest.mark.promise("V4")
async def test_no_update_is_lost_between_conditional_writers(
    volume: VolumeConfig, web: Web
) -> None:
    await real_drive(web, volume)
    client = web.client()
    await client.put("/v1/wrk/counter", content=b"0")

    async def count() -> None:
        for _ in range(200):
            seen = await client.get("/v1/wrk/counter")
            raised = await client.put(
                "/v1/wrk/counter",
                content=b"%d" % (int(seen.content) + 1),
                headers={"if-match": seen.headers["etag"]},
            )
            if raised.status_code == 204:
                return
            assert raised.status_code == 412
        raise AssertionError("never got its turn")

    await asyncio.gather(*(count() for _ in range(8)))
    assert (await client.get("/v1/wrk/counter")).content == b"8"


@pytest.mark.promise("V4")
async def test_an_upload_that_is_cut_leaves_nothing_behind(volume: VolumeConfig, web: Web) -> None:
    fs = await real_drive(web, volume)
    client = web.client()
    await client.put("/v1/wrk/f", content=b"old")
    used = (await fs.statfs()).bytes_used

    async def body() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(MIB)
        raise RuntimeError("the client breaks off")

    with pytest.raises(RuntimeError, match="breaks off"):
        await client.put("/v1/wrk/f", content=body())
    # The service notices only after the client that its connection is gone.
    async with asyncio.timeout(20):
        while (await fs.statfs()).bytes_used != used:
            pass
    assert (await client.get("/v1/wrk/f")).content == b"old"
    assert [entry.name for entry in await fs.readdir(ROOT_INO, 0, 10)] == [b"f"]


@pytest.mark.promise("V4")
async def test_a_name_that_is_being_replaced_is_never_missing(
    volume: VolumeConfig, web: Web
) -> None:
    await real_drive(web, volume)
    client = web.client()
    await client.put("/v1/wrk/f", content=b"0" * 1000)
    replacing = True

    async def replace() -> None:
        for number in range(150):
            content = b"%d" % (number % 10) * 1000
            assert (await client.put("/v1/wrk/f", content=content)).status_code == 204

    async def look() -> None:
        while replacing:
            got = await client.get("/v1/wrk/f")
            assert got.status_code == 200
            assert len(got.content) == 1000
            assert len(set(got.content)) == 1

    looking = [asyncio.create_task(look()) for _ in range(3)]
    await asyncio.gather(replace(), replace())
    replacing = False
    await asyncio.gather(*looking)


@pytest.mark.promise("V4")
async def test_a_put_and_the_writes_of_a_box_never_mix(volume: VolumeConfig, web: Web) -> None:
    await real_drive(web, volume)
    client = web.client()
    box = await Filesystem.connect(volume)
    size = 300_000
    try:
        for _ in range(8):
            await client.put("/v1/wrk/f", content=b"0" * size)
            handle = await box.open((await box.lookup(ROOT_INO, b"f")).ino, os.O_RDWR)
            writing = asyncio.create_task(overwrite(handle, b"B" * size))
            putting = asyncio.create_task(client.put("/v1/wrk/f", content=b"P" * (size + 7)))
            while not (writing.done() and putting.done()):
                got = (await client.get("/v1/wrk/f")).content
                assert re.fullmatch(rb"B*0*|P+", got)
                assert len(got) == size + (got[:1] == b"P") * 7
            await writing
            assert (await putting).status_code == 204
            assert (await client.get("/v1/wrk/f")).content == b"P" * (size + 7)
            assert await handle.read(0, size + 10) == b"B" * size, "its own file, unlinked now"
            await handle.close()
    finally:
        await box.close()


async def overwrite(handle: FileHandle, data: bytes) -> None:
    """Writes in four steps, each durable and visible."""
    step = len(data) // 4
    for start in range(0, len(data), step):
        await handle.write(start, data[start : start + step])
        await handle.fsync()


@pytest.mark.promise("V4")
async def test_appending_boxes_lose_nothing_to_a_put(volume: VolumeConfig, web: Web) -> None:
    await real_drive(web, volume)
    client = web.client()
    box = await Filesystem.connect(volume)
    try:
        for _ in range(5):
            await client.put("/v1/wrk/log", content=b"")
            lines = [b"<%03d>" % number for number in range(30)]
            appending = asyncio.create_task(append_each(box, lines))
            put = await client.put("/v1/wrk/log", content=b"P" * 100_000)
            assert put.status_code == 204
            await appending
            got = (await client.get("/v1/wrk/log")).content
            assert got[:100_000] == b"P" * 100_000
            rest = re.findall(rb"<...>", got[100_000:])
            assert b"".join(rest) == got[100_000:]
            assert rest == lines[len(lines) - len(rest) :], "all after the PUT, in order"
    finally:
        await box.close()


async def append_each(fs: Filesystem, lines: list[bytes]) -> None:
    """Opens, appends, closes, as `echo >>` does."""
    for line in lines:
        handle = await opened(fs, b"log")
        await handle.write(0, line)
        await handle.close()


async def opened(fs: Filesystem, name: bytes) -> FileHandle:
    """Looks a name up and opens it, again when it was replaced in between, as the kernel does."""
    for _ in range(50):
        attr = await fs.lookup(ROOT_INO, name)
        try:
            return await fs.open(attr.ino, os.O_WRONLY | os.O_APPEND)
        except NotFound:
            continue
    raise AssertionError("replaced all the time")


async def test_uploads_that_fail_leave_no_object(
    volume: VolumeConfig, web: Web, objectserver: ObjectServer
) -> None:
    fs = await real_drive(web, volume)
    client = web.client()

    def objects() -> int:
        directory = objectserver.directory / "server" / "data" / volume.store.prefix
        return sum(path.is_file() for path in directory.rglob("*"))

    first = await client.put("/v1/wrk/f", content=os.urandom(9 * MIB))
    assert objects() == 3
    _, writer = await web.connect()
    writer.write(f"PUT /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n".encode())
    writer.write(b"Content-Length: 20000000\r\n\r\n" + os.urandom(9 * MIB))
    await until(lambda: objects() == 5)
    writer.transport.abort()

    async def body() -> AsyncIterator[bytes]:
        yield os.urandom(9 * MIB)
        await client.put("/v1/wrk/f", content=os.urandom(5 * MIB))

    tag = first.headers["etag"]
    late = await client.put("/v1/wrk/f", content=body(), headers={"if-match": tag})
    assert late.status_code == 412
    await client.put("/v1/wrk/gone", content=os.urandom(9 * MIB))
    await client.delete("/v1/wrk/gone")
    await until(lambda: not fs._files)
    await trash.empty(fs)
    # What other readers may still need is known to be free with their next heartbeat.
    async with asyncio.timeout(20):
        while objects() > 2:
            await gc.collect(fs, grace=timedelta(0))
    assert objects() == 2, "the five MiB that are there"
    assert (await fs.statfs()).bytes_used == 5 * MIB
    assert len((await client.get("/v1/wrk/f")).content) == 5 * MIB


async def test_an_answer_under_way_keeps_its_bytes_from_collection(
    volume: VolumeConfig, web: Web, objectserver: ObjectServer
) -> None:
    fs = await real_drive(web, volume)
    client, size = web.client(), 80 * MIB
    old = os.urandom(MIB) * (size // MIB)
    await client.put("/v1/wrk/f", content=old)
    directory = objectserver.directory / "server" / "data" / volume.store.prefix

    def objects() -> int:
        return sum(path.is_file() for path in directory.rglob("*"))

    reader, writer = await web.connect()
    writer.write(f"GET /v1/wrk/f HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n\r\n".encode())
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    await client.put("/v1/wrk/f", content=b"new")
    await client.put("/v1/wrk/witness", content=os.urandom(MIB))
    await client.delete("/v1/wrk/witness")
    await trash.empty(fs)
    # The slow reader began before both were removed, so both stay until it ends.
    database = await asyncpg.connect(volume.meta_dsn)
    removed = await database.fetchval("SELECT clock_timestamp()")
    beaten = "SELECT min(heartbeat_at) > $1 FROM session"
    async with asyncio.timeout(20):
        while not await database.fetchval(beaten, removed):
            await gc.collect(fs, grace=timedelta(0))
    await database.close()
    await gc.collect(fs, grace=timedelta(0))
    assert objects() == size // (4 * MIB) + 1
    assert await asyncio.wait_for(reader.readexactly(size), 60) == old
    writer.close()
    async with asyncio.timeout(20):
        while objects():
            await gc.collect(fs, grace=timedelta(0))
    assert (await client.get("/v1/wrk/f")).content == b"new"
