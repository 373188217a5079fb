"""Show the attributes of a path and the slices of a file."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wrkfs.cli.output import Answer, filesystem, human
from wrkfs.errors import NotFound
from wrkfs.paths import resolve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from wrkfs.config import VolumeConfig
    from wrkfs.types import Attr

HELP = "show the attributes of a path and the slices of a file"
TYPES = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}
SHOWN_TIMES = range(-62_135_596_800, 253_402_300_800)
"""Seconds since 1970 of the years 1 to 9999, which `datetime` can format."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments."""
    parser.add_argument("path", nargs="?", default="/", metavar="PATH")


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """Return attributes and slices. Raises NotFound."""
    async with filesystem(config) as fs:
        attr = (await resolve(fs, os.fsencode(arguments.path), follow=False)).attr
        if attr is None:
            raise NotFound(arguments.path)
        kind = TYPES.get(stat.S_IFMT(attr.mode), "unknown")
        data: dict[str, Any] = {"path": arguments.path, "type": kind, **asdict(attr)}
        lines = list(_attr_lines(arguments.path, kind, attr))
        if attr.is_symlink:
            data["target"] = os.fsdecode(await fs.readlink(attr.ino))
            lines.append(f"target    {data['target']!r}")
        if attr.is_file:
            refs = (await fs.file_map(attr.ino)).refs
            data["slices"] = [
                {
                    "pos": ref.pos,
                    "length": ref.length,
                    "slice": ref.slice_id,
                    "off": ref.off,
                    "size": ref.size,
                    "place": "store" if ref.inline is None else "database",
                }
                for ref in refs
            ]
            lines.append(f"slices    {len(refs)}")
            lines += [
                f"  {one['pos']:>14} +{one['length']:<12} slice {one['slice']} "
                f"[{one['off']}, {one['off'] + one['length']}) of {one['size']} "
                f"in the {one['place']}"
                for one in data["slices"]
            ]
    return Answer(data, lines)


def _attr_lines(path: str, kind: str, attr: Attr) -> Iterable[str]:
    yield f"path      {path!r}"
    yield f"type      {kind}, {stat.filemode(attr.mode)}, {attr.nlink} links"
    yield f"inode     {attr.ino}, version {attr.version}"
    yield f"owner     {attr.uid}:{attr.gid}"
    yield f"size      {attr.size} ({human(attr.size)})"
    for name, value in (
        ("accessed", attr.atime_ns),
        ("modified", attr.mtime_ns),
        ("changed", attr.ctime_ns),
    ):
        yield f"{name:<9} {_time(value)}"


def _time(value_ns: int) -> str:
    seconds, rest = divmod(value_ns, 10**9)
    if seconds not in SHOWN_TIMES:
        return f"{seconds} s since 1970"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
