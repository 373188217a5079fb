"""Check the rows of the volume against every invariant, even while it is mounted.

Each check runs on one snapshot of the volume. Different checks run on different snapshots.

Exit status: 0 clean, 1 findings, 2 the check could not run. `--repair` repairs all findings that
can be repaired without losing a byte of a named file, then checks again. The exit status is that of
the second check. `--data` also reads every block and compares it with its checksum.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from wrkfs.cli.output import Answer, Progress, counted
from wrkfs.upkeep import fsck, repair, scrub

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig
    from wrkfs.meta.postgres.snapshot import Finding

HELP = "check the rows of the volume (--data: also its blocks; --repair: repair safely)"
CANNOT = 2
"""Exit status when the check could not run."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments."""
    parser.add_argument(
        "--repair",
        action="store_true",
        help="repair all findings that can be repaired without losing data",
    )
    parser.add_argument(
        "--data", action="store_true", help="read every block and verify its checksum"
    )


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """Check the volume, and repair it on request. Raises Unavailable."""
    with Progress("checking invariants") as bar:
        findings = await fsck.check(config, progress=bar)
    before, repaired = findings, {}
    if arguments.repair and findings:
        with Progress("repairing") as bar:
            repaired = await repair.repair(config, progress=bar)
        with Progress("checking again") as bar:
            findings = await fsck.check(config, progress=bar)
    if arguments.data:
        with Progress("verifying blocks", in_bytes=True) as bar:
            findings = findings + await scrub.scrub(config, progress=bar)
    lines = []
    if repaired:
        lines += [line(one) for one in before]
        lines += [f"repaired: {count} by {name}" for name, count in repaired.items()]
        lines.append("still wrong:")
    lines += [line(one) for one in findings]
    lines.append(counted(len(findings), "finding") if findings else "clean")
    data: dict[str, Any] = {
        "clean": not findings,
        "findings": [
            {
                "invariant": one.invariant or "data",
                "inode": one.ino,
                "name": None if one.name is None else os.fsdecode(one.name),
                "detail": one.detail,
            }
            for one in findings
        ],
        "mended": repaired,
    }
    return Answer(data, lines, 1 if findings else 0)


def line(one: Finding) -> str:
    """Format a finding for people. Names are escaped, so they cannot move the cursor."""
    where = f"inode {one.ino}" if one.ino else "volume"
    name = "" if one.name is None else f" {os.fsdecode(one.name)!r}"
    what = f"I{one.invariant}" if one.invariant else "data"
    return f"{what:<5} {where}{name}: {one.detail}"
