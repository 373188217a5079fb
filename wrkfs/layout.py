"""How a file's bytes are laid out in slices and blocks. Pure arithmetic.

A slice is one contiguous write. It is stored as blocks of at most `BLOCK_SIZE`, immutable objects
named `<prefix>/<slice id>/<n>`; slices of at most `INLINE_MAX` bytes stand in PostgreSQL instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wrkfs.types import SliceId

KIB = 1024
MIB = 1024 * KIB

CHUNK_SIZE = 64 * MIB
"""Logical range of a file under which slice rows are indexed."""
BLOCK_SIZE = 4 * MIB
"""Largest object; a slice's last block may be shorter."""
INLINE_MAX = 64 * KIB
"""Slices up to this size are stored in PostgreSQL, with no object at all."""
CHECKSUM_UNIT = 128 * KIB
"""Grain of crc32c sums inside a block, so that a ranged read can be checked."""
NAME_MAX = 255
"""Longest file name, bytes (Linux)."""
PATH_MAX = 4096
"""Longest path and symlink target, bytes (Linux)."""
LINK_MAX = 65000
"""Most hard links of one file (EMLINK above)."""
MAX_FILE_SIZE = (1 << 63) - 1
"""Largest offset that a Linux file can have."""


def block_key(prefix: str, slice_id: SliceId, index: int) -> str:
    """Object key of block `index` of a slice. `prefix` has no trailing slash."""
    return f"{prefix}/{slice_id}/{index}"


def block_count(size: int) -> int:
    """Number of blocks of a slice of `size` bytes."""
    return -(-size // BLOCK_SIZE)
