"""`wrkfs`: a volume seen from outside, with nothing but its credential file.

::

    wrkfs stat --credentials FILE [PATH]    attributes of a path and the slices it consists of
    wrkfs df --credentials FILE             what the volume uses, and its limits
"""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from wrkfs.config import ConfigError, VolumeConfig
from wrkfs.errors import NotFound, WrkfsError
from wrkfs.fs import Filesystem
from wrkfs.paths import resolve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from wrkfs.types import Attr

_TYPES = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def main() -> int:
    """Entry point. Exit status: 0, 1 for an error, 2 for a wrong call."""
    arguments = _parser().parse_args()
    command: Callable[[Filesystem, argparse.Namespace], Awaitable[Iterable[str]]]
    command = {"stat": _stat, "df": _df}[arguments.command]
    try:
        config = VolumeConfig.from_file(arguments.credentials)
        lines = asyncio.run(_run(config, command, arguments))
    except (ConfigError, WrkfsError) as error:
        sys.stderr.write(f"wrkfs: {error}\n")
        return 1
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wrkfs", description="A volume seen from outside.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    found = commands.add_parser("stat", help="attributes of a path and the slices it consists of")
    found.add_argument("path", nargs="?", default="/", metavar="PATH")
    used = commands.add_parser("df", help="what the volume uses, and its limits")
    for command in (found, used):
        command.add_argument(
            "--credentials", type=Path, required=True, metavar="FILE", help="mode 0600"
        )
    return parser


async def _run(
    config: VolumeConfig,
    command: Callable[[Filesystem, argparse.Namespace], Awaitable[Iterable[str]]],
    arguments: argparse.Namespace,
) -> Iterable[str]:
    fs = await Filesystem.connect(config, kind="cli")
    try:
        return await command(fs, arguments)
    finally:
        await fs.close()


async def _stat(fs: Filesystem, arguments: argparse.Namespace) -> Iterable[str]:
    path = os.fsencode(arguments.path)
    attr = (await resolve(fs, path, follow=False)).attr
    if attr is None:
        raise NotFound(arguments.path)
    lines = list(_attr_lines(arguments.path, attr))
    if attr.is_symlink:
        lines.append(f"target    {os.fsdecode(await fs.readlink(attr.ino))!r}")
    if attr.is_file:
        refs = (await fs.file_map(attr.ino)).refs
        lines.append(f"slices    {len(refs)}")
        for ref in refs:
            place = "database" if ref.inline is not None else "store"
            lines.append(
                f"  {ref.pos:>14} +{ref.length:<12} slice {ref.slice_id} "
                f"[{ref.off}, {ref.off + ref.length}) of {ref.size} in the {place}"
            )
    return lines


def _attr_lines(path: str, attr: Attr) -> Iterable[str]:
    kind = _TYPES.get(stat.S_IFMT(attr.mode), "unknown")
    yield f"path      {path!r}"
    yield f"type      {kind}, {stat.filemode(attr.mode)}, {attr.nlink} links"
    yield f"inode     {attr.ino}, version {attr.version}"
    yield f"owner     {attr.uid}:{attr.gid}"
    yield f"size      {attr.size} ({_human(attr.size)})"
    for name, value in (
        ("accessed", attr.atime_ns),
        ("modified", attr.mtime_ns),
        ("changed", attr.ctime_ns),
    ):
        yield f"{name:<9} {datetime.fromtimestamp(value // 10**9, UTC).isoformat()}"


async def _df(fs: Filesystem, _arguments: argparse.Namespace) -> Iterable[str]:
    found = await fs.statfs()
    rows = (
        ("bytes", found.bytes_used, found.bytes_limit, _human),
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
    return lines


def _human(size: int) -> str:
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size} B"


if __name__ == "__main__":
    sys.exit(main())
