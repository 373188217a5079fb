"""Block store in memory, with fault hooks, for tests and simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from wrkfs.errors import Corrupt, Missing, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from wrkfs.types import BytesLike

    Hook: TypeAlias = Callable[[str], Awaitable[None]]


class MemoryBlocks:
    """Objects in a dict; several Filesystems may share one.

    `before_put`, `before_get` and `before_delete` are awaited with the key: they may wait, or raise
    a `WrkfsError` in the store's place. `after_put` runs when the object is stored but the caller
    has not been told.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts = 0
        self.gets = 0
        self.before_put: Hook | None = None
        self.after_put: Hook | None = None
        self.before_get: Hook | None = None
        self.before_delete: Hook | None = None
        self._closed = False

    async def put(self, key: str, data: BytesLike) -> None:
        """Stores an object. Another value under a known key is a bug of the caller."""
        self._check_open()
        if self.before_put is not None:
            await self.before_put(key)
        self.puts += 1
        stored = bytes(data)
        if self.objects.setdefault(key, stored) != stored:
            raise Corrupt(f"{key} was written before with other bytes")
        if self.after_put is not None:
            await self.after_put(key)

    async def get(self, key: str, start: int, length: int) -> memoryview:
        """Bytes of an object."""
        self._check_open()
        if self.before_get is not None:
            await self.before_get(key)
        self.gets += 1
        found = self.objects.get(key)
        if found is None:
            raise Missing(f"{key} is missing")
        if start + length > len(found):
            raise Corrupt(f"{key} has {len(found)} bytes; {start} + {length} were asked for")
        return memoryview(found)[start : start + length]

    async def delete(self, keys: Sequence[str]) -> None:
        """Removes objects."""
        self._check_open()
        for key in keys:
            if self.before_delete is not None:
                await self.before_delete(key)
            self.objects.pop(key, None)

    async def close(self) -> None:
        """Refuses everything from now on; the objects stay for other Filesystems' stores."""
        self._closed = True

    def attach(self) -> MemoryBlocks:
        """Another client of the same objects, as another mount would have."""
        other = MemoryBlocks()
        other.objects = self.objects
        return other

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the block store is closed")
