"""Health of a `Filesystem`: answers of its stores, usage, and bytes that are not committed."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wrkfs.errors import Missing, WrkfsError
from wrkfs.layout import block_key
from wrkfs.types import SliceId

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem
    from wrkfs.types import StatFs, Statistics

PATIENCE = 2.0
"""Maximum number of seconds for the answer of each store."""
NO_SLICE = SliceId(0)
"""An id that no slice has. A request for it shows that the store answers."""
HEALTHY = "ok"


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a Filesystem. Sizes in bytes; a limit is None if there is none.

    `health` is `ok` or an error text. Usage and limits are None if the database does not answer.
    `pending_bytes` are written and not committed. `memory_bytes` is the process's resident set.
    """

    health: str
    bytes_used: int | None
    bytes_limit: int | None
    inodes_used: int | None
    inodes_limit: int | None
    pending_bytes: int
    open_files: int
    cache_memory_bytes: int
    cache_disk_bytes: int | None
    cache_disk_limit: int | None
    cache_disk_state: str
    memory_bytes: int
    statistics: Statistics


async def health(fs: Filesystem, *, patience: float = PATIENCE) -> Health:
    """Check both stores, in at most `patience` seconds."""
    (usage, database), store = await asyncio.gather(_usage(fs, patience), _store(fs, patience))
    pending, files = fs.load
    cache = fs.cache_usage
    disk = cache.disk
    problems = [problem for problem in (database, store) if problem]
    return Health(
        health="; ".join(problems) or HEALTHY,
        bytes_used=None if usage is None else usage.bytes_used,
        bytes_limit=None if usage is None else usage.bytes_limit,
        inodes_used=None if usage is None else usage.inodes_used,
        inodes_limit=None if usage is None else usage.inodes_limit,
        pending_bytes=pending,
        open_files=files,
        cache_memory_bytes=cache.memory,
        cache_disk_bytes=None if disk is None else disk.size,
        cache_disk_limit=None if disk is None else disk.limit,
        cache_disk_state="none" if disk is None else disk.state,
        memory_bytes=_resident(),
        statistics=fs.statistics,
    )


async def _usage(fs: Filesystem, patience: float) -> tuple[StatFs | None, str]:
    try:
        async with asyncio.timeout(patience):
            return await fs.statfs(), ""
    except TimeoutError:
        return None, f"the metadata database has not answered for {patience:g} s"
    except WrkfsError as error:
        return None, f"the metadata database reports an error: {error}"


async def _store(fs: Filesystem, patience: float) -> str:
    stores = fs.stores
    try:
        async with asyncio.timeout(patience):
            await stores.blocks.get(block_key(stores.prefix, NO_SLICE, 0), 0, 1)
    except TimeoutError:
        return f"the object store has not answered for {patience:g} s"
    except Missing:
        return ""
    except WrkfsError as error:
        return f"the object store reports an error: {error}"
    return ""


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")
