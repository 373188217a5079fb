"""Block store on any S3-compatible server, through obstore.

obstore moves the bytes off the GIL (*measured* against aioboto3 on 4 MiB objects: 2.1 times the
throughput at 0.56 of the CPU). Its own retries are off: `retry` has the one deadline.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions
from obstore.store import S3Store as _Client

from wrkfs.data.retry import DEADLINE, retrying
from wrkfs.errors import Corrupt, Missing, StorageError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from wrkfs.config import StoreConfig
    from wrkfs.types import BytesLike

    T = TypeVar("T")

ATTEMPT_TIMEOUT = timedelta(seconds=20)
"""Bound of one request, so that a stalled connection leaves time for another attempt."""
LOOPBACK = ("http://127.0.0.1:", "http://[::1]:", "http://localhost:")
CONNECT_TIMEOUT = timedelta(seconds=3)

_PERMANENT = (
    exceptions.NotFoundError,
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
)


class S3Blocks:
    """One volume's objects. Stateless beside its connection pool; any calls may interleave."""

    def __init__(self, config: StoreConfig, *, deadline: float = DEADLINE) -> None:
        self._prefix = config.prefix + "/"
        self._deadline = deadline
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
                "timeout": ATTEMPT_TIMEOUT,
            },
            retry_config={"max_retries": 0, "retry_timeout": ATTEMPT_TIMEOUT},
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
        found = memoryview(
            await self._run(
                lambda: obstore.get_range_async(store, key, start=start, length=length),
                f"GET {key}",
            )
        )
        if len(found) != length:
            raise Corrupt(f"{key} gave {len(found)} bytes at {start}; {length} were asked for")
        return found

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

    async def close(self) -> None:
        """Drops the connection pool."""
        self._store = None

    def _client(self, key: str) -> _Client:
        if not key.startswith(self._prefix):
            raise ValueError("a block key outside of the volume's prefix")
        if self._store is None:
            raise Unavailable("the block store is closed")
        return self._store

    async def _run(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        try:
            return await retrying(call, _transient, what, deadline=self._deadline)
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            raise Missing(f"{what}: the object is missing") from error
        except exceptions.BaseError as error:
            # The message of obstore names the endpoint and the key, and no credential.
            raise StorageError(f"{what}: {type(error).__name__}") from error


def _transient(error: Exception) -> bool:
    """Whether another attempt may succeed: connection errors, timeouts, 429 and 5xx."""
    return isinstance(error, exceptions.BaseError) and not isinstance(error, _PERMANENT)
