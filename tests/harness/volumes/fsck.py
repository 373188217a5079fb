"""`fsck_clean`: the last check of every round of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.loop import run
from wrkfs.upkeep import fsck

if TYPE_CHECKING:
    from wrkfs.config import VolumeConfig


def fsck_clean(volume: VolumeConfig) -> None:
    """Raise AssertionError that names every broken invariant. Mounts may be active."""
    run(fsck_clean_async(volume))


async def fsck_clean_async(volume: VolumeConfig) -> None:
    """Do the same inside of an event loop."""
    findings = await fsck.check(volume)
    assert not findings, "\n".join(
        f"I{one.invariant}: inode {one.ino} {one.name!r}: {one.detail}" for one in findings
    )
