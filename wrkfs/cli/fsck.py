"""Checks the volume's rows against every invariant, also while it is mounted.

Each check sees the volume as it is at one moment; different checks see different moments.

Exit status: 0 clean, 1 something is wrong, 2 it could not be checked. `--repair` mends what can be
mended without giving up a byte that some name shows, and checks again; the status tells what is
left. `--data` also reads every block and compares it with its checksum.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from wrkfs import fsck, repair, scrub
from wrkfs.cli.output import Answer, Progress

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig
    from wrkfs.meta.snapshot import Finding

HELP = "check the volume's rows (--data: its blocks too; --repair: mend what is safe)"
CANNOT = 2
"""Exit status when nothing could be checked."""


def declare(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("--repair", action="store_true", help="mend what can be mended safely")
    parser.add_argument("--data", action="store_true", help="verify every block's checksum")


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """See the module."""
    with Progress("checking invariants") as bar:
        findings = await fsck.check(config, progress=bar)
    before, mended = findings, {}
    if arguments.repair and findings:
        with Progress("mending") as bar:
            mended = await repair.repair(config, progress=bar)
        with Progress("checking again") as bar:
            findings = await fsck.check(config, progress=bar)
    if arguments.data:
        with Progress("verifying blocks", in_bytes=True) as bar:
            findings = findings + await scrub.scrub(config, progress=bar)
    lines = []
    if mended:
        lines += [line(one) for one in before]
        lines += [f"mended: {count} by {name}" for name, count in mended.items()]
        lines.append("what is left:")
    lines += [line(one) for one in findings]
    lines.append(f"{len(findings)} found" if findings else "clean")
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
        "mended": mended,
    }
    return Answer(data, lines, 1 if findings else 0)


def line(one: Finding) -> str:
    """A finding for people; names cannot move the cursor."""
    where = f"inode {one.ino}" if one.ino else "volume"
    name = "" if one.name is None else f" {os.fsdecode(one.name)!r}"
    what = f"I{one.invariant}" if one.invariant else "data"
    return f"{what:<5} {where}{name}: {one.detail}"
