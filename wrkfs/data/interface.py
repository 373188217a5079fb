"""The interface of a block store. `wrkfs.data.s3` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wrkfs.types import BytesLike


class BlockStore(Protocol):
    """Immutable objects under the volume's prefix. `layout.block_key` creates the keys.

    Each call retries transient failures until one deadline, and then raises `Unavailable`.
    """

    async def put(self, key: str, data: BytesLike) -> None:
        """Store an object durably. A second call with the same key has the same bytes."""
        ...

    async def get(self, key: str, start: int, length: int) -> memoryview:
        """Return bytes [start, start + length) of an object.

        Raises Missing, or Corrupt if the object is shorter.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. A missing object is not an error."""
        ...

    async def close(self) -> None:
        """Close connections. Idempotent."""
        ...
