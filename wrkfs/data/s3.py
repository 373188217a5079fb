"""Block store on any S3-compatible server, through obstore.

obstore transfers bytes without the GIL (*measured* against aioboto3 on 4 MiB objects: 2.1 times the
throughput at 0.56 of the CPU). Its own retries are off, because `retry` sets the deadline.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions
from obstore.store import S3Store as _Client

from wrkfs.data import exit_wait
from wrkfs.data.congestion import CongestionWindow
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
from wrkfs.outage_probe import SUSPECT, OutageProbe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from wrkfs.config import StoreConfig
    from wrkfs.types import BytesLike

    T = TypeVar("T")

ATTEMPT = 20.0
"""Maximum number of seconds of one request, so that a stalled connection leaves time for a retry.
On a slow line (`CongestionWindow.slow`) it is doubled: enough for 4 MiB at 105 KB/s."""
TIMEOUT_TRIES = 6
"""Maximum number of timeouts of one call while other calls succeed."""
LOOPBACK = ("http://127.0.0.1:", "http://[::1]:", "http://localhost:")
CONNECT_TIMEOUT = timedelta(seconds=3)

CHECK_INTERVAL = 0.5
"""Seconds between two checks for requests that wait suspiciously long."""
GET_TRIES = 4
"""Attempts to get an object that is missing or incomplete: a store may be eventually consistent."""
CLEAR_BATCH = 1000
"""Number of objects that `clear` lists and deletes at once."""
GET_PAUSE = 0.05
"""Seconds before the second attempt of a GET; each further pause is twice as long."""


class S3Blocks:
    """One volume's objects; any calls may interleave.

    Critical section: none across an await. `_attempts` maps the timeout of each request in progress
    to its start. After an outage, `wrkfs.outage_probe` makes `_resend` end these requests.
    """

    def __init__(
        self, config: StoreConfig, *, deadline: float = DEADLINE, attempt: float = ATTEMPT
    ) -> None:
        """`deadline`: seconds without success after which a call fails. `attempt`: see ATTEMPT."""
        exit_wait.wait_at_exit()
        self._prefix = config.prefix + "/"
        self._attempt_seconds = attempt
        self._min_seconds = min(deadline, CONNECT_TIMEOUT.total_seconds())
        self._window = CongestionWindow(deadline)
        self._attempts: dict[asyncio.Timeout, float] = {}
        self._check_timer: asyncio.TimerHandle | None = None
        self._outage_probe = OutageProbe(self._probe, lambda: bool(self._attempts), self._resend)
        self._store: _Client | None = _Client(
            config.bucket,
            endpoint=config.endpoint,
            region=config.region,
            access_key_id=config.access_key,
            secret_access_key=config.secret_key,
            virtual_hosted_style_request=False,
            # A signature of the payload needs a SHA-256 on both sides, which costs a third of the
            # throughput of PUT (*measured*). On loopback the crc32c of the blocks is enough.
            unsigned_payload=config.endpoint.startswith(LOOPBACK),
            client_options={
                "allow_http": config.endpoint.startswith("http://"),
                "connect_timeout": CONNECT_TIMEOUT,
                # `_attempt` ends each request earlier.
                "timeout": timedelta(seconds=3 * attempt),
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=3 * attempt)},
        )

    async def put(self, key: str, data: BytesLike) -> None:
        """Store an object with one request. `data` must not change until the call returns."""
        store = self._client(key)
        await self._run(
            lambda: obstore.put_async(store, key, data, use_multipart=False), f"PUT {key}"
        )

    async def get(self, key: str, start: int, length: int) -> memoryview:
        """Return bytes of an object, in the buffer that the network filled."""
        store = self._client(key)
        pause = GET_PAUSE
        for retries in range(GET_TRIES - 1, -1, -1):
            try:
                data = memoryview(
                    await self._run(
                        lambda: obstore.get_range_async(store, key, start=start, length=length),
                        f"GET {key}",
                    )
                )
            except Missing:
                if not retries:
                    raise
            else:
                if len(data) == length:
                    return data
                if not retries:
                    raise Corrupt(f"{key} has {len(data)} of {length} bytes at offset {start}")
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("the last attempt returns or raises")

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects with as few requests as the server permits."""
        if not keys:
            return
        for key in keys:
            self._client(key)
        store = self._client(keys[0])
        await self._run(
            lambda: obstore.delete_async(store, list(keys)), f"DELETE of {len(keys)} objects"
        )

    async def clear(self) -> None:
        """Delete every object of the volume. No session may write during the call."""
        store = self._client(self._prefix)

        async def list_batch() -> list[str]:
            pages = obstore.list(store, self._prefix, chunk_size=CLEAR_BATCH)
            async for page in pages:
                return [item["path"] for item in page]
            return []

        while keys := await self._run(list_batch, f"LIST {self._prefix}"):
            await self.delete(keys)

    async def close(self) -> None:
        """Close the connection pool."""
        self._store = None
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        await self._outage_probe.close()

    def _client(self, key: str) -> _Client:
        if not key.startswith(self._prefix):
            raise ValueError("a block key outside of the volume's prefix")
        if self._store is None:
            raise Unavailable("the block store is closed")
        return self._store

    async def _run(self, call: Callable[[], Awaitable[T]], action: str) -> T:
        start = asyncio.get_running_loop().time()
        try:
            for _ in range(TIMEOUT_TRIES):
                async with self._window.slot(start, action):
                    # A call that waited long for its slot still makes one attempt, so that its
                    # error says what the store answers.
                    deadline = max(self._window.time_left(start), self._min_seconds)
                    with suppress(_TimedOut):
                        return await retrying(
                            lambda: self._attempt(call), _transient, action, deadline=deadline
                        )
                if self._window.time_left(start) <= 0:
                    break
            raise Unavailable(f"{action}: every attempt timed out")
        except (exceptions.BaseError, OSError) as error:
            # The text of obstore contains the endpoint and the key, and no credentials.
            text = f"{action}: {type(error).__name__}"
            raise _ERRORS.get(meaning(error), StorageError)(text) from error

    async def _attempt(self, call: Callable[[], Awaitable[T]]) -> T:
        """Send a request once. Raises _TimedOut; ConnectionError if it began in an outage."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        end = start + self._attempt_seconds * (2 if self._window.slow else 1)
        try:
            async with asyncio.timeout_at(end) as timeout:
                self._attempts[timeout] = start
                if self._check_timer is None:
                    self._check_timer = loop.call_later(CHECK_INTERVAL, self._check_attempts)
                try:
                    answer = await call()
                finally:
                    del self._attempts[timeout]
            self._window.note_success()
            return answer
        except TimeoutError as error:
            if loop.time() >= end:
                self._window.note_timeout(start)
                raise _TimedOut from error
            raise ConnectionError("the store was unreachable during the request") from error

    def _check_attempts(self) -> None:
        """Start the outage probe if the oldest request waits suspiciously long."""
        loop = asyncio.get_running_loop()
        self._check_timer = None
        if not self._attempts:
            return
        if loop.time() - next(iter(self._attempts.values())) > SUSPECT:
            self._outage_probe.check()
        self._check_timer = loop.call_later(CHECK_INTERVAL, self._check_attempts)

    async def _probe(self) -> None:
        """Request an object that does not exist: any answer except a server error is good."""
        store = self._client(self._prefix)
        try:
            await obstore.head_async(store, f"{self._prefix}pulse")
        except (exceptions.BaseError, OSError) as error:
            if meaning(error) is Meaning.TRANSIENT:
                raise

    def _resend(self, before: float) -> None:
        """End the requests that began before the store was back; `retrying` sends them again."""
        now = asyncio.get_running_loop().time()
        for timeout, start in self._attempts.items():
            if start < before and not timeout.expired():
                timeout.reschedule(now)


class _TimedOut(Exception):
    """A request timed out: the store is slow, or the request was lost."""


_ERRORS: dict[Meaning, type[WrkfsError]] = {
    Meaning.MISSING: Missing,
    Meaning.FULL: NoSpace,
    Meaning.QUOTA: QuotaExceeded,
}


def _transient(error: Exception) -> bool:
    """Return True if another attempt may succeed: connection errors, timeouts, 429 and 5xx."""
    is_store_error = isinstance(error, exceptions.BaseError | OSError)
    return is_store_error and meaning(error) is Meaning.TRANSIENT
