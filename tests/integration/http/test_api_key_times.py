"""KEY-TIME: whatever is wrong with a key, the answer is the same in every byte, and in time.

Requests with each kind of it alternate on one connection, so that what the machine does beside hits
all alike. How long each took is kept in `.build/keys`, by kind. The long run compares the medians,
a shorter one the bytes alone, for the machine may be busy.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.config import Address, Config
from boxd.http.app import Api
from boxd.http.server.serve import ApiServer
from boxd.store.postgres.store import PostgresStore
from tests.harness.simulation.world import ALICE, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plugins.figures import Figures

KEPT = Path(".build/keys")
UNKNOWN = "svc_" + "0" * 40
APART = 0.05
"""Of a median: how far the others may be from it. A question to the database is more than that."""


class Asked:
    """A served API on PostgreSQL, and one connection to it."""

    def __init__(self, address: Address, revoked: str, expired: str) -> None:
        self.address = address
        self.lines = {
            # As long as the others: what the parser does is no secret.
            "missing": f"X-Nothing: Bear {UNKNOWN}",
            "empty": "Authorization: Bearer" + " " * (len(UNKNOWN) + 1),
            "malformed": "Authorization: Bearer " + "x" * len(UNKNOWN),
            "other scheme": f"Authorization: Basic_ {UNKNOWN}",
            "unknown": f"Authorization: Bearer {UNKNOWN}",
            "revoked": f"Authorization: Bearer {revoked}",
            "expired": f"Authorization: Bearer {expired}",
        }
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def connect(self) -> None:
        """Opens the connection."""
        self.reader, self.writer = await asyncio.open_connection(
            self.address.host, self.address.port
        )

    async def ask(self, kind: str) -> tuple[float, bytes]:
        """Seconds until the answer was there, and all of it but its time and its id."""
        text = f"GET /v1/boxes HTTP/1.1\r\nHost: {self.address}\r\n{self.lines[kind]}\r\n\r\n"
        begun = time.perf_counter()
        self.writer.write(text.encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None, head
        body = await self.reader.readexactly(int(length[1]))
        own = rb"(date|x-request-id): [^\r]*"
        return time.perf_counter() - begun, re.sub(own, b"", head) + body


@pytest_asyncio.fixture
async def asked(tmp_path: Path, pg_database: str) -> AsyncIterator[Asked]:
    """See `Asked`."""
    async with AsyncExitStack() as stack:
        store = PostgresStore(pg_database)
        await store.start()
        stack.push_async_callback(store.close)
        world = World(tmp_path, store=store)
        await world.start()
        stack.push_async_callback(world.close)
        config = Config(state_dir=tmp_path, api_addr=Address("127.0.0.1", 0))
        server = ApiServer(Api(world.operations, config), config)
        address = await server.start()
        stack.push_async_callback(server.close)
        operations = world.operations
        _, revoked = await operations.keys.create_key(ALICE, "revoked", scope=None, ttl=None)
        await operations.keys.remove_key(ALICE, "revoked")
        soon = timedelta(microseconds=1)
        _, expired = await operations.keys.create_key(ALICE, "expired", scope=None, ttl=soon)
        world.clock.turn(soon)
        made = Asked(address, revoked.reveal(), expired.reveal())
        await made.connect()
        stack.callback(made.writer.transport.abort)
        yield made


@pytest.mark.figure("KEY-TIME")
async def test_every_key_that_is_no_good_is_answered_alike(asked: Asked, figures: Figures) -> None:
    taken: dict[str, list[float]] = {kind: [] for kind in asked.lines}
    _, wanted = await asked.ask("unknown")
    assert wanted.startswith(b"HTTP/1.1 401 ")
    assert wanted.endswith(b'{"error": "invalid API key"}')
    try:
        for seed in figures(ci=20, long=20_000):
            for kind in random.Random(seed).sample(list(taken), len(taken)):
                seconds, answer = await asked.ask(kind)
                assert answer == wanted, kind
                taken[kind].append(seconds)
    finally:
        KEPT.mkdir(parents=True, exist_ok=True)
        for kind, times in taken.items():
            with (KEPT / kind.replace(" ", "_")).open("a") as file:
                file.writelines(f"{seconds:.6f}\n" for seconds in times)
    if figures.long:
        medians = {kind: median(times) for kind, times in taken.items()}
        usual = medians["unknown"]
        apart = {kind: one for kind, one in medians.items() if abs(one - usual) > APART * usual}
        assert not apart, medians
