"""A removed tree is restored from the trash unchanged."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.volumes.trees import LINKS, TREES, Link, Node, check_trash
from tests.unit.wrkfs.drive import Drive


async def round_trip(tree: Node, links: list[Link], *, at_once: bool) -> None:
    """Remove and restore the tree on a volume in memory."""
    drive = Drive()
    drive.volume.trash_seconds = 3600
    await check_trash(await drive.mount(), tree, links, at_once=at_once)
    await drive.close()


@given(TREES, LINKS, st.booleans())
@settings(max_examples=60)
def test_a_removed_tree_comes_back_as_it_was(tree: Node, links: list[Link], at_once: bool) -> None:
    asyncio.run(round_trip(tree, links, at_once=at_once))
