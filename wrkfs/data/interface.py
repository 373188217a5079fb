"""What a block store does. Implementations: `s3` (real), `memory` (tests, simulation)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wrkfs.types import BytesLike


class BlockStore(Protocol):
    """Immutable objects under the volume's prefix. Keys come from `layout.block_key`.

    Transient failures are retried inside under one deadline; then `Unavailable` is raised.
    """

    async def put(self, key: str, data: BytesLike) -> None:
        """Stores an object durably. Writing the same key again stores the same bytes."""
        ...

    async def get(self, key: str, start: int, length: int) -> memoryview:
        """Bytes [start, start + length) of an object. Missing; Corrupt when it is shorter."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Removes objects; absent ones are no error."""
        ...

    async def close(self) -> None:
        """Lets go of connections. Idempotent."""
        ...
