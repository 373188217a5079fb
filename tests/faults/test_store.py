"""The object store misbehaves: what passes costs time only, what does not is told at once."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.harness.servers.fault_proxy import Fault, Toxic
from wrkfs.data.retry import DEADLINE
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import Corrupt, NoSpace, QuotaExceeded, StorageError, Unavailable, WrkfsError
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.harness.servers.fault_proxy import Request, StoreProxy
    from tests.plugins.figures import Figures
    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle
    from wrkfs.types import Ino

Connect: TypeAlias = "Callable[[], Awaitable[Filesystem]]"

ME = Caller(0, 0)
SIZE = 300 * 1024
"""One object."""


async def new(fs: Filesystem, name: bytes = b"file") -> FileHandle:
    return (await fs.create(ROOT_INO, name, 0o600, os.O_RDWR, ME))[1]


async def stored(fs: Filesystem, data: bytes, name: bytes = b"file") -> Ino:
    """Writes a file; its inode."""
    handle = await new(fs, name)
    await handle.write(0, data)
    await handle.close()
    return handle.ino


async def content(fs: Filesystem, ino: Ino) -> bytes:
    handle = await fs.open(ino, os.O_RDONLY)
    try:
        return await handle.read(0, 2 * SIZE)
    finally:
        await handle.close()


def puts(store: StoreProxy) -> int:
    """How often something was sent; who waits for long probes the store besides."""
    return [method for method, _ in store.requests].count("PUT")


def xml(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()


PASSING = {
    "500": Fault(500, body=xml("InternalError")),
    "503 with Retry-After": Fault(503, (("Retry-After", "1"),), xml("SlowDown")),
    "429": Fault(429, body=xml("TooManyRequests")),
    "400 in its own words": Fault(400, body=xml("RequestTimeout")),
    "307": Fault(307),
    "error body with 200": Fault(200, body=xml("InternalError")),
    "answer lost": Fault(unheard=True),
    "answer torn": Fault(torn=10),
    "body changed": Fault(changed=True),
    "another tag": Fault(renamed=(b'ETag: "', b'ETag: "0')),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
async def test_what_passes_costs_time_only(
    connect: Connect, store: StoreProxy, fault: Fault
) -> None:
    """The first request of each kind meets the fault, and the next one too where it may."""
    times = 1 if fault.changed else 2
    met: dict[str, int] = {}

    def rule(request: Request) -> Fault | None:
        met[request.method] = met.get(request.method, 0) + 1
        if met[request.method] > times:
            return None
        if fault.status == 307:  # to where it came from
            return replace(fault, headers=(("Location", request.path),))
        return fault

    store.rule = rule
    fs, data = await connect(), os.urandom(SIZE)
    ino = await stored(fs, data)
    assert await content(await connect(), ino) == data
    assert met["PUT"] <= times + 1
    assert met["GET"] <= times + 1


async def test_an_object_that_appears_late_is_waited_for(
    connect: Connect, store: StoreProxy
) -> None:
    fs, data = await connect(), os.urandom(SIZE)
    ino = await stored(fs, data)
    left = 2

    def rule(request: Request) -> Fault | None:
        nonlocal left
        left -= 1
        return Fault(404, body=xml("NoSuchKey")) if left >= 0 else None

    store.rule = rule
    assert await content(await connect(), ino) == data


async def test_a_put_that_is_cut_in_the_middle_is_made_again(
    connect: Connect, store: StoreProxy
) -> None:
    fs, data = await connect(), os.urandom(4 << 20)
    handle = await new(fs)
    store.toxic = Toxic(latency=0.05)
    await handle.write(0, data)
    store.reset()
    store.toxic = Toxic()
    await handle.close()
    reader = await (await connect()).open(handle.ino, os.O_RDONLY)
    assert await reader.read(0, len(data)) == data
    await reader.close()


REFUSED = {
    "rights": (Fault(403, body=xml("AccessDenied")), StorageError),
    "key rotated": (Fault(403, body=xml("InvalidAccessKeyId")), StorageError),
    "nonsense": (Fault(400, body=xml("InvalidRequest")), StorageError),
    "full": (Fault(507, body=xml("InsufficientStorage")), NoSpace),
    "full, without words": (Fault(507), NoSpace),
    "full, as MinIO says it": (Fault(507, body=xml("XMinioStorageFull")), NoSpace),
    "quota, as Ceph says it": (Fault(403, body=xml("QuotaExceeded")), QuotaExceeded),
    "quota, as MinIO says it": (
        Fault(400, body=xml("XMinioAdminBucketQuotaExceeded")),
        QuotaExceeded,
    ),
}


@pytest.mark.promise("D4")
@pytest.mark.parametrize(("fault", "expected"), REFUSED.values(), ids=REFUSED)
async def test_what_does_not_pass_is_told_at_once_by_every_handle(
    connect: Connect, store: StoreProxy, fault: Fault, expected: type[WrkfsError]
) -> None:
    fs, data = await connect(), os.urandom(SIZE)
    handle = await new(fs)
    second = await fs.open(handle.ino, os.O_RDONLY)
    store.rule = lambda request: fault if request.method == "PUT" else None
    await handle.write(0, data)
    with pytest.raises(expected):
        await handle.fsync()
    assert puts(store) == 1, "nothing was tried again"
    store.rule = lambda _: None
    later = await fs.open(handle.ino, os.O_RDWR)
    await later.write(0, data)
    await later.fsync()
    await handle.fsync()
    with pytest.raises(expected):
        await second.close()
    await handle.close()
    await later.close()
    assert await content(await connect(), handle.ino) == data


async def test_changed_bytes_are_never_served(connect: Connect, store: StoreProxy) -> None:
    fs, data = await connect(), os.urandom(SIZE)
    ino = await stored(fs, data)
    store.rule = lambda request: Fault(changed=True) if request.method == "GET" else None
    with pytest.raises(Corrupt):
        await content(await connect(), ino)


@pytest.mark.figure("FT-30")
async def test_thirty_percent_of_failures_fail_nothing(
    connect: Connect, store: StoreProxy, figures: Figures
) -> None:
    fs = await connect()
    for number in figures(ci=25, long=2000):
        chance = random.Random(number)
        before = len(store.requests)
        store.rule = rule_of({n for n in range(before, before + 1000) if chance.random() < 0.3})
        data = chance.randbytes(SIZE)
        ino = await stored(fs, data, b"file%d" % number)
        handle = await fs.open_snapshot(ino)
        assert await handle.read(0, SIZE) == data
        await handle.close()
        await fs.unlink(ROOT_INO, b"file%d" % number)
    # A put and a get in each round.
    assert len(store.requests) <= 4 * 2 * (number + 1) or figures.long


def rule_of(failing: set[int]) -> Callable[[Request], Fault | None]:
    """Fails the requests of these numbers."""
    fault = Fault(500, body=xml("InternalError"))
    return lambda request: fault if request.number in failing else None


async def test_an_outage_longer_than_the_deadline_is_an_error_that_no_success_hides(
    connect: Connect, store: StoreProxy
) -> None:
    fs, data = await connect(), os.urandom(SIZE)
    blocks = fs.stores.blocks
    assert isinstance(blocks, S3Blocks)
    handle = await new(fs)
    bystander = await fs.open(handle.ino, os.O_RDWR)
    store.down()
    # Only now: what is asked of a store that is there may take its time.
    blocks._window._patience = 1.0
    await handle.write(0, data)
    with pytest.raises(Unavailable):
        await handle.fsync()
    blocks._window._patience = DEADLINE
    store.up()
    await handle.write(SIZE, data)
    await handle.fsync()
    with pytest.raises(Unavailable):
        await bystander.fsync()
    await bystander.fsync()
    await bystander.close()
    await handle.close()
    # What was lost is a hole, what came after is there.
    assert await content(fs, handle.ino) == bytes(SIZE) + data


async def test_a_request_in_a_black_hole_is_made_again_when_the_store_is_back(
    connect: Connect, store: StoreProxy
) -> None:
    fs, data = await connect(), os.urandom(SIZE)
    await stored(fs, data, b"before")
    store.toxic = Toxic(black_hole=True)
    handle = await new(fs)
    await handle.write(0, data)
    closing = asyncio.create_task(handle.close())
    loop = asyncio.get_running_loop()
    begun = loop.time()
    done, _ = await asyncio.wait([closing], timeout=7.0)
    assert not done
    store.toxic = Toxic()
    back = loop.time()
    # Long before the request's own bound, 20 s, would have ended it.
    await asyncio.wait_for(closing, 10)
    print(f"away {back - begun:.1f} s, served again after {loop.time() - back:.2f} s")
    assert await content(await connect(), handle.ino) == data


async def test_a_slow_store_is_not_taken_for_one_that_is_away(
    connect: Connect, store: StoreProxy
) -> None:
    fs, data = await connect(), os.urandom(SIZE)
    store.toxic = Toxic(latency=3.0)
    ino = await stored(fs, data)
    store.toxic = Toxic()
    assert puts(store) == 1
    assert await content(await connect(), ino) == data
