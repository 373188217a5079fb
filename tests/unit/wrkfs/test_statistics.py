"""Totals of one session: the cache of blocks, uploads, and calls of the metadata database."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tests.harness.wait import at_once
from tests.unit.wrkfs.drive import content, create
from wrkfs.config import Limits
from wrkfs.layout import BLOCK_SIZE
from wrkfs.meta.postgres.links import CallCount

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from tests.unit.wrkfs.drive import Drive

BIG = b"x" * (256 * 1024)
"""More than a commit has inline."""


async def test_reads_count_as_hits_and_misses(drive: Drive) -> None:
    writer = await drive.mount()
    handle = await create(writer)
    await handle.write(0, BIG)
    await handle.close()
    reader = await drive.mount(limits=Limits(blocks=4 * BLOCK_SIZE))
    assert await content(reader) == BIG
    misses = reader.statistics.cache_misses_total
    assert misses > 0
    assert await content(reader) == BIG
    assert reader.statistics.cache_misses_total == misses
    assert reader.statistics.cache_hits_total > 0


async def test_uploads_are_counted_while_they_run(drive: Drive) -> None:
    fs = await drive.mount()
    path = fs._write_path
    async with path.upload_slot():
        assert fs.statistics.running_uploads == 1
        for _ in range(path.uploads._value):
            await path.uploads.acquire()
        waiting = asyncio.create_task(_upload(path.upload_slot()))
        await at_once(lambda: fs.statistics.queued_uploads == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert fs.statistics.queued_uploads == 0
    assert fs.statistics.running_uploads == 0


async def _upload(slot: AbstractAsyncContextManager[None]) -> None:
    async with slot:
        return


def test_calls_are_counted_and_passed_on() -> None:
    names: list[str] = []

    def watch(name: str) -> AbstractContextManager[object]:
        names.append(name)
        return nullcontext()

    calls = CallCount(watch)
    for name in ("lookup", "getattr"):
        with calls(name):
            pass
    assert (calls.total, names) == (2, ["lookup", "getattr"])


async def test_a_session_without_leases_has_none(drive: Drive) -> None:
    seen = (await drive.mount()).statistics
    assert (seen.leases, seen.recalls_total, seen.unsent_changes, seen.flushes_total) == (0,) * 4
