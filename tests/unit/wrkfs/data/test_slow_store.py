"""A store that is too slow for concurrent requests serves them one after the other."""

from __future__ import annotations

import asyncio

from wrkfs.config import StoreConfig
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import Unavailable

SIZE = 256 * 1024
SLICE = 16 * 1024
RATE = 1024 * 1024
"""Bytes per second of the store, shared by all its requests."""
ATTEMPT = 1.0
"""Seconds of one attempt: enough for four concurrent objects, and too short for twelve."""


class SlowStore:
    """A store whose requests share one slow disk."""

    def __init__(self, rate: float) -> None:
        self.stored = 0
        self._rate = rate
        self._disk = asyncio.Lock()

    async def up(self) -> StoreConfig:
        """Start to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return StoreConfig(f"http://127.0.0.1:{port}", "bucket", "volume", "r", "key", "secret")

    def down(self) -> None:
        """Stop listening."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                await reader.readexactly(size)
                for _ in range(size // SLICE):
                    async with self._disk:
                        if reader.at_eof():
                            return
                        await asyncio.sleep(SLICE / self._rate)
                self.stored += size
                writer.write(b'HTTP/1.1 200 OK\r\nETag: "0"\r\nContent-Length: 0\r\n\r\n')
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


async def test_a_slow_store_costs_time_only() -> None:
    store = SlowStore(RATE)
    blocks = S3Blocks(await store.up(), deadline=4.0, attempt=ATTEMPT)
    try:
        await asyncio.gather(*(blocks.put(f"volume/1/{n}", bytes(SIZE)) for n in range(24)))
        assert store.stored >= 24 * SIZE
    finally:
        await blocks.close()
        store.down()


async def test_a_store_that_takes_nothing_is_unavailable() -> None:
    store = SlowStore(1.0)
    blocks = S3Blocks(await store.up(), deadline=0.5, attempt=0.2)
    try:
        puts = (blocks.put(f"volume/1/{n}", bytes(SIZE)) for n in range(100))
        ends = await asyncio.gather(*puts, return_exceptions=True)
        assert {type(end) for end in ends} == {Unavailable}
    finally:
        await blocks.close()
        store.down()
