"""Show the use and the limits of the volume."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from wrkfs.cli.output import Answer, filesystem, human

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig

HELP = "show the use and the limits of the volume"


def declare(_parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments: none."""


async def run(config: VolumeConfig, _arguments: argparse.Namespace) -> Answer:
    """Return the use of bytes and inodes. Raises Unavailable."""
    async with filesystem(config) as fs:
        usage = await fs.statfs()
    rows = (
        ("bytes", usage.bytes_used, usage.bytes_limit, human),
        ("inodes", usage.inodes_used, usage.inodes_limit, str),
    )
    lines = [f"{'':<8}{'used':>14}{'limit':>14}{'free':>14}{'use':>7}"]
    for name, used, limit, show in rows:
        if limit is None:
            lines.append(f"{name:<8}{show(used):>14}{'none':>14}{'-':>14}{'-':>7}")
        else:
            share = f"{100 * used / limit:.1f}%" if limit else "-"
            free = show(max(0, limit - used))
            lines.append(f"{name:<8}{show(used):>14}{show(limit):>14}{free:>14}{share:>7}")
    return Answer(asdict(usage), lines)
