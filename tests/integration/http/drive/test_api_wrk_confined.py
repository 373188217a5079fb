"""/v1/wrk asked for what is not the caller's: no other schema and no other prefix is touched.

Counted on real stores: PostgreSQL counts what is read and written of each table, and the object
server stands behind a proxy that notes every request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from boxd.workspaces.drive import ALWAYS, Drive, OpenFile
from tests.harness.http.web import ALICE
from tests.harness.mounts.drive import fresh_volume
from tests.harness.servers.detour import through_store
from tests.harness.servers.fault_proxy import StoreProxy
from wrkfs import paths
from wrkfs.fs import Filesystem
from wrkfs.types import Caller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.http.web import Web
    from tests.harness.servers.objectserver import ObjectServer
    from wrkfs.config import VolumeConfig

MARKER = b"what only the victim may read. "
LARGE = MARKER * 10_000
"""More than 64 KiB: it stands in the object store."""
ROOT = Caller(0, 0)
UP = (
    *("..", "../..", "%2e%2e", "%2E%2e/%2e%2E", "..%2f..%2f..", "%2e%2e%2f", "a/../..", "./.."),
    *("..%5c..%5c", "..;/", "%252e%252e/", "%c0%ae%c0%ae/", "%00", "a%00/..", "...", ".. /"),
)
SPACES = (
    *("../x", "..%2Fx", "%2e%2e", ".", "/", "a/b", "a%00b", "A", "%ff", "", "a%0d%0aX:%20y", "_"),
    *("x&ws=y", "'%20OR%201=1--", "x" * 300),
)
RANGES = (
    *("bytes=-1", "bytes=0-0", "bytes=99999999999999999999-", "bytes=-99999999999999999999"),
    *("bytes=0-18446744073709551616", "bytes=5-1", "bytes=--1", "bytes=+1-2", "bytes=0x0-0x9"),
    *("bytes=0-,-1", "bytes=" + "0-0," * 5000, "bytes=1e3-", "bytes = 0-1", "bytes=0-1\t", "none"),
)
LINKS = 8
METHODS = ("GET", "HEAD", "PUT", "DELETE")


@pytest.fixture
def victim(drive_database: str, objectserver: ObjectServer) -> Iterator[VolumeConfig]:
    """A volume of somebody else, in the same database and on the same server."""
    with fresh_volume(drive_database, objectserver) as config:
        yield config


async def put(fs: Filesystem, path: bytes, data: bytes) -> None:
    """Writes a file."""
    pieces = [data]

    async def body() -> bytes | None:
        return pieces.pop() if pieces else None

    await Drive(fs).put(path, body, ALWAYS)


async def fill(volume: VolumeConfig) -> None:
    """Gives a volume files to look for."""
    fs = await Filesystem.connect(volume)
    await put(fs, b"secret", MARKER)
    await put(fs, b"d/large", LARGE)
    await fs.close()


async def read_back(volume: VolumeConfig) -> None:
    """What `fill` wrote is there as it was."""
    fs = await Filesystem.connect(volume)
    for path, data in ((b"secret", MARKER), (b"d/large", LARGE)):
        async with Drive(fs).at(path) as file:
            assert isinstance(file, OpenFile)
            assert b"".join([piece async for piece in file.pieces(0, file.size)]) == data
    await fs.close()


async def touched(database: str) -> dict[str, int]:
    """What has been read and written of the tables of each schema, so far."""
    connection = await asyncpg.connect(database)
    try:
        rows = await connection.fetch(
            "SELECT schemaname, sum(coalesce(seq_scan, 0) + coalesce(idx_scan, 0) + n_tup_ins"
            " + n_tup_upd + n_tup_del)::bigint AS uses FROM pg_stat_all_tables"
            " WHERE schemaname NOT LIKE 'pg\\_%' GROUP BY schemaname"
        )
        return {row["schemaname"]: row["uses"] for row in rows}
    finally:
        await connection.close()


async def ask(web: Web, method: str, target: str, *lines: str) -> tuple[int, bytes]:
    """One request, byte for byte; status and the whole answer."""
    reader, writer = await web.connect()
    head = [f"{method} {target} HTTP/1.1", "Host: x", f"X-Api-Key: {web.key}", "Content-Length: 0"]
    writer.write("\r\n".join([*head, "Connection: close", *lines, "", ""]).encode("latin-1"))
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return int(answer.split()[1]), answer


def foreign(victim: VolumeConfig) -> list[str]:
    """Names by which the victim's volume is known somewhere."""
    schema, prefix, bucket = victim.schema, victim.store.prefix, victim.store.bucket
    return [
        *(prefix, schema, f"{prefix}/", f"/{bucket}/{prefix}", f"%2F{bucket}%2F{prefix}%2F"),
        *(f"../{prefix}/secret", f"..%2F{schema}%2Fsecret", f'"{schema}".node', f"{schema}.node"),
        f"';%20DROP%20SCHEMA%20%22{schema}%22%20CASCADE;--",
    ]


def requests(victim: VolumeConfig) -> list[tuple[str, str, tuple[str, ...]]]:
    """Everything that is tried: method, target, header lines."""
    names = [*UP, *foreign(victim), "%5C", "a%5Cb", "x" * 255, "x" * 256, "%ff" * 255, "%ff" * 256]
    names += [f"{up}/{name}" for up in UP for name in ("secret", victim.store.prefix, "d/large")]
    found: list[tuple[str, str, tuple[str, ...]]] = []
    links = [f"out{number}" for number in range(LINKS)]
    names += [f"{link}{rest}" for link in links for rest in ("/secret", "/d/large", "/", "/..", "")]
    for method in METHODS:
        found += [(method, f"/v1/wrk/{name}", ()) for name in names]
        spaces = [*SPACES, victim.schema, victim.store.prefix, *foreign(victim)]
        found += [(method, f"/v1/wrk/secret?ws={space}", ()) for space in spaces]
        found += [(method, f"/v1/wrk{rest}", ()) for rest in ("", "/", "//", "/%2f", "/%2F%2f")]
    found += [("GET", "/v1/wrk/mine", (f"Range: {value}",)) for value in RANGES]
    return found


@pytest.mark.promise("S1")
@pytest.mark.timeout(120)
async def test_nothing_of_anybody_else_is_touched(
    drive_database: str, volume: VolumeConfig, victim: VolumeConfig, web: Web
) -> None:
    await fill(victim)
    proxy = StoreProxy(volume.store.endpoint)
    try:
        fs = await Filesystem.connect(through_store(volume, proxy.endpoint), kind="http")
        web.drives.given[ALICE.owner, None] = fs
        await put(fs, b"mine", LARGE[:100_000].replace(b"victim", b"caller"))
        await link_out(fs, victim)
        before = await touched(drive_database)
        for method, target, lines in requests(victim):
            status, answer = await ask(web, method, target, *lines)
            assert status < 500, (method, target, answer)
            assert MARKER not in answer, (method, target)
        await swap_links(web, fs)
        del web.drives.given[ALICE.owner, None]
        await fs.close()  # what its connections have counted is told then
        after = await touched(drive_database)
    finally:
        proxy.close()
    await read_back(victim)
    assert (await touched(drive_database))[victim.schema] > after[victim.schema], (
        "it counts nothing"
    )
    assert after[volume.schema] > before[volume.schema]
    others = {schema: uses for schema, uses in after.items() if schema != volume.schema}
    assert others == {schema: before[schema] for schema in others}
    own = f"/{volume.store.bucket}/{volume.store.prefix}/"
    assert any(path.startswith(own) for _, path in proxy.requests)
    assert [path for _, path in proxy.requests if not path.startswith(own)] == []


async def link_out(fs: Filesystem, victim: VolumeConfig) -> None:
    """Links as a box can make them, to everything outside."""
    outside = (b"../../..", b"/", b"/etc/passwd", b"/wrk/../..", b"/proc/self/environ")
    theirs = (victim.schema.encode(), b"../" + victim.store.prefix.encode(), b"/wrk/../secret")
    assert len(outside) + len(theirs) == LINKS
    for number, target in enumerate((*outside, *theirs)):
        place = await paths.resolve(fs, b"out%d" % number, follow=False)
        await fs.symlink(place.parent, place.name, target, ROOT)


async def swap_links(web: Web, fs: Filesystem) -> None:
    """A link inside becomes one that leads out, and back, while files are asked for through it."""
    await put(fs, b"inside/secret", b"the caller's own")
    root = (await paths.resolve(fs, b"swap", follow=False)).parent

    async def flip() -> None:
        for number in range(60):
            target = b"inside" if number % 2 else b"../../../../.."
            await fs.symlink(root, b"new", target, ROOT)
            await fs.rename(root, b"new", root, b"swap")

    async def use() -> None:
        while not flipping.done():
            status, answer = await ask(web, "GET", "/v1/wrk/swap/secret")
            assert status == 404 or answer.endswith(b"the caller's own")
            status, _ = await ask(web, "PUT", "/v1/wrk/swap/empty")
            assert status in {201, 204, 404, 409}

    flipping = asyncio.create_task(flip())
    await asyncio.gather(flipping, use(), use())
    listed = {entry.name for entry in await fs.readdir(root, 0, 1000)}
    assert {b"inside", b"swap", b"mine"} <= listed
