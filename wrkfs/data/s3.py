"""Block store on any S3-compatible server, through obstore.

obstore moves the bytes off the GIL (*measured* against aioboto3 on 4 MiB objects: 2.1 times the
throughput at 0.56 of the CPU). Its own retries are off: `retry` has the one deadline.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions
from obstore.store import S3Store as _Client

from wrkfs.data import ending
from wrkfs.data.flow import Flow
from wrkfs.data.refusals import Meaning, meaning
from wrkfs.data.retry import DEADLINE, retrying
from wrkfs.errors import (
    Corrupt,
    Missing,
    NoSpace,
    QuotaExceeded,
    StorageError,
    Unavailable,
    WrkfsError,
)
from wrkfs.pulse import SUSPECT, Pulse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from wrkfs.config import StoreConfig
    from wrkfs.types import BytesLike

    T = TypeVar("T")

ATTEMPT = 20.0
"""Seconds of one request, so that a stalled connection leaves time for another attempt; twice as
many while the line to the store is slow (see `flow`): 4 MiB at 105 KB/s."""
LATE_TRIES = 6
"""So often one call may send a request that takes too long, while others succeed."""
LOOPBACK = ("http://127.0.0.1:", "http://[::1]:", "http://localhost:")
CONNECT_TIMEOUT = timedelta(seconds=3)

LOOK = 0.5
"""Seconds between two looks at requests that wait."""
TRIES = 4
"""Attempts to get an object that is not there yet, or came torn: a store may lag behind itself."""
CLEARED = 1000
"""Objects that are listed and removed at a time."""
LAG = 0.05
"""Seconds until the second of them; each further pause is twice as long."""


class S3Blocks:
    """One volume's objects; any calls may interleave.

    Critical section: none across an await; `_attempts` holds the bound of each request under way
    and when it began. See `pulse` for what a store that was away means for them.
    """

    def __init__(
        self, config: StoreConfig, *, deadline: float = DEADLINE, attempt: float = ATTEMPT
    ) -> None:
        """`deadline`: seconds without success after which a call ends; `attempt`: see ATTEMPT."""
        ending.wait_at_end()
        self._prefix = config.prefix + "/"
        self._bound = attempt
        self._one_try = min(deadline, CONNECT_TIMEOUT.total_seconds())
        self._flow = Flow(deadline)
        self._attempts: dict[asyncio.Timeout, float] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._pulse = Pulse(self._probe, lambda: bool(self._attempts), self._cut)
        self._store: _Client | None = _Client(
            config.bucket,
            endpoint=config.endpoint,
            region=config.region,
            access_key_id=config.access_key,
            secret_access_key=config.secret_key,
            virtual_hosted_style_request=False,
            # On loopback nobody stands between: a SHA-256 on both sides only to sign the payload
            # costs a third of the throughput of PUT (*measured*), and blocks carry a crc32c.
            unsigned_payload=config.endpoint.startswith(LOOPBACK),
            client_options={
                "allow_http": config.endpoint.startswith("http://"),
                "connect_timeout": CONNECT_TIMEOUT,
                # `_attempt` ends each request before.
                "timeout": timedelta(seconds=3 * attempt),
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=3 * attempt)},
        )

    async def put(self, key: str, data: BytesLike) -> None:
        """Stores an object in one request; `data` must not change until this returns."""
        store = self._client(key)
        await self._run(
            lambda: obstore.put_async(store, key, data, use_multipart=False), f"PUT {key}"
        )

    async def get(self, key: str, start: int, length: int) -> memoryview:
        """Bytes of an object, in the buffer that the network filled."""
        store = self._client(key)
        pause = LAG
        for left in range(TRIES - 1, -1, -1):
            try:
                found = memoryview(
                    await self._run(
                        lambda: obstore.get_range_async(store, key, start=start, length=length),
                        f"GET {key}",
                    )
                )
            except Missing:
                if not left:
                    raise
            else:
                if len(found) == length:
                    return found
                if not left:
                    raise Corrupt(f"{key} gave {len(found)} of {length} bytes at {start}")
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("the last try returns or raises")

    async def delete(self, keys: Sequence[str]) -> None:
        """Removes objects with as few requests as the server allows."""
        if not keys:
            return
        for key in keys:
            self._client(key)
        store = self._client(keys[0])
        await self._run(
            lambda: obstore.delete_async(store, list(keys)), f"DELETE of {len(keys)} objects"
        )

    async def clear(self) -> None:
        """Removes every object of the volume, whatever it is. Nobody may write meanwhile."""
        store = self._client(self._prefix)

        async def some() -> list[str]:
            pages = obstore.list(store, self._prefix, chunk_size=CLEARED)
            async for page in pages:
                return [one["path"] for one in page]
            return []

        while keys := await self._run(some, f"LIST {self._prefix}"):
            await self.delete(keys)

    async def close(self) -> None:
        """Drops the connection pool."""
        self._store = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        await self._pulse.close()

    def _client(self, key: str) -> _Client:
        if not key.startswith(self._prefix):
            raise ValueError("a block key outside of the volume's prefix")
        if self._store is None:
            raise Unavailable("the block store is closed")
        return self._store

    async def _run(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        began = asyncio.get_running_loop().time()
        try:
            for _ in range(LATE_TRIES):
                async with self._flow.turn(began, what):
                    # Also who had to wait tries once, and is told what the store says.
                    left = max(self._flow.left(began), self._one_try)
                    with suppress(_Late):
                        return await retrying(
                            lambda: self._attempt(call), _transient, what, deadline=left
                        )
                if self._flow.left(began) <= 0:
                    break
            raise Unavailable(f"{what}: the store takes too long")
        except (exceptions.BaseError, OSError) as error:
            # The message of obstore names the endpoint and the key, and no credential.
            text = f"{what}: {type(error).__name__}"
            raise _ERRORS.get(meaning(error), StorageError)(text) from error

    async def _attempt(self, call: Callable[[], Awaitable[T]]) -> T:
        """Sends a request once; _Late after its time, ConnectionError when the pulse gave it up."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        until = began + self._bound * (2 if self._flow.slow else 1)
        try:
            async with asyncio.timeout_at(until) as bound:
                self._attempts[bound] = began
                if self._watch is None:
                    self._watch = loop.call_later(LOOK, self._look)
                try:
                    done = await call()
                finally:
                    del self._attempts[bound]
            self._flow.moved()
            return done
        except TimeoutError as error:
            if loop.time() >= until:
                self._flow.late(began)
                raise _Late from error
            raise ConnectionError("the store was away while the request was under way") from error

    def _look(self) -> None:
        """Sees whether requests wait for suspiciously long."""
        loop = asyncio.get_running_loop()
        self._watch = None
        if not self._attempts:
            return
        if loop.time() - next(iter(self._attempts.values())) > SUSPECT:
            self._pulse.look()
        self._watch = loop.call_later(LOOK, self._look)

    async def _probe(self) -> None:
        """Asks for an object that is not there: any answer will do but a failure of the server."""
        store = self._client(self._prefix)
        try:
            await obstore.head_async(store, f"{self._prefix}pulse")
        except (exceptions.BaseError, OSError) as error:
            if meaning(error) is Meaning.TRANSIENT:
                raise

    def _cut(self, before: float) -> None:
        """The store was away and is back: what was sent into the void is sent again now."""
        now = asyncio.get_running_loop().time()
        for bound, since in self._attempts.items():
            if since < before and not bound.expired():
                bound.reschedule(now)


class _Late(Exception):
    """A request took too long; the store may be slow, or the request lost."""


_ERRORS: dict[Meaning, type[WrkfsError]] = {
    Meaning.MISSING: Missing,
    Meaning.FULL: NoSpace,
    Meaning.QUOTA: QuotaExceeded,
}


def _transient(error: Exception) -> bool:
    """Whether another attempt may succeed: connection errors, timeouts, 429 and 5xx."""
    known = isinstance(error, exceptions.BaseError | OSError)
    return known and meaning(error) is Meaning.TRANSIENT
