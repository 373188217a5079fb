"""Whatever a volume holds comes back whole: from the trash, and by dump and load."""

from __future__ import annotations

import asyncio
import io
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.harness.mounts.drive import fresh_volume
from tests.harness.volumes.fsck import fsck_clean
from tests.harness.volumes.trees import (
    LINKS,
    TREES,
    Link,
    Node,
    assert_same,
    check_trash,
    make,
    state,
)
from wrkfs.fs import Filesystem
from wrkfs.types import ROOT_INO
from wrkfs.upkeep import dump, load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.servers.objectserver import ObjectServer
    from wrkfs.config import VolumeConfig

BLOCK = 512
"""A dump holds whole blocks of this many bytes."""

pytestmark = pytest.mark.timeout(300)
examples = settings(
    max_examples=20,
    # To make a failing example smaller would take minutes: it makes two volumes for each try.
    phases=[Phase.explicit, Phase.generate],
)


@asynccontextmanager
async def connected(config: VolumeConfig) -> AsyncIterator[Filesystem]:
    """A session, closed at the end."""
    fs = await Filesystem.connect(config)
    try:
        yield fs
    finally:
        await fs.close()


async def trash_trip(config: VolumeConfig, tree: Node, links: list[Link], *, at_once: bool) -> None:
    """See `check_trash`."""
    async with connected(config) as fs:
        await check_trash(fs, tree, links, at_once=at_once)


@examples
@given(tree=TREES, links=LINKS, at_once=st.booleans())
def test_a_removed_tree_comes_back_as_it_was(
    drive_database: str, objectserver: ObjectServer, tree: Node, links: list[Link], at_once: bool
) -> None:
    with fresh_volume(drive_database, objectserver) as config:
        asyncio.run(trash_trip(config, tree, links, at_once=at_once))
        fsck_clean(config)


async def dump_trip(
    source: VolumeConfig, target: VolumeConfig, tree: Node, links: list[Link]
) -> None:
    """Dumps a volume with that tree, loads it into another, and compares the whole state."""
    archive = io.BytesIO()
    async with connected(source) as fs:
        await make(fs, ROOT_INO, tree, links)
        before = await state(fs, ROOT_INO)
        done = await dump.dump(
            source, fs, archive, copy_progress=lambda *_: None, write_progress=lambda *_: None
        )
    assert done.entries == len(before)
    archive.seek(0)
    async with connected(target) as fs:
        loaded = await load.load(fs, archive, progress=lambda *_: None)
        after = await state(fs, ROOT_INO)
    assert loaded.skipped == 0
    for shown in (before, after):
        for one in shown.values():
            del one["ino"]
            if "parts" in one:
                one["parts"] = in_blocks(one["parts"], one["size"])
                one["held"] = sum(end - start for start, end in one["parts"])
    assert_same(after, before)


def in_blocks(parts: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """What is no hole, in whole blocks: all that an archive tells."""
    found: list[tuple[int, int]] = []
    for start, end in parts:
        low, high = start - start % BLOCK, min(size, end + -end % BLOCK)
        if found and low <= found[-1][1]:
            low = found.pop()[0]
        found.append((low, high))
    return found


@examples
@given(tree=TREES, links=LINKS)
def test_a_dump_is_loaded_as_it_was(
    drive_database: str, objectserver: ObjectServer, tree: Node, links: list[Link]
) -> None:
    with (
        fresh_volume(drive_database, objectserver) as source,
        fresh_volume(drive_database, objectserver) as target,
    ):
        asyncio.run(dump_trip(source, target, tree, links))
        fsck_clean(target)
