"""What the volume uses, and its limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from wrkfs.cli.output import Answer, filesystem, human

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig

HELP = "what the volume uses, and its limits"


def declare(_parser: argparse.ArgumentParser) -> None:
    """The command's own arguments: none."""


async def run(config: VolumeConfig, _arguments: argparse.Namespace) -> Answer:
    """See the module."""
    async with filesystem(config) as fs:
        found = await fs.statfs()
    rows = (
        ("bytes", found.bytes_used, found.bytes_limit, human),
        ("inodes", found.inodes_used, found.inodes_limit, str),
    )
    lines = [f"{'':<8}{'used':>14}{'limit':>14}{'free':>14}{'use':>7}"]
    for name, used, limit, show in rows:
        if limit is None:
            lines.append(f"{name:<8}{show(used):>14}{'none':>14}{'-':>14}{'-':>7}")
        else:
            share = f"{100 * used / limit:.1f}%" if limit else "-"
            free = show(max(0, limit - used))
            lines.append(f"{name:<8}{show(used):>14}{show(limit):>14}{free:>14}{share:>7}")
    return Answer(asdict(found), lines)
