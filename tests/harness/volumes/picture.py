"""The content of a volume as plain values, to compare two moments, releases or sessions."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING

from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem
    from wrkfs.types import Attr, Ino

BATCH = 500
PIECE = 1024 * 1024


async def picture(fs: Filesystem) -> dict[str, list[str | int]]:
    """Return inode, mode, links, owner, group, size, mtime and content of everything, by path.

    Content is the SHA-256 of a file's bytes, or a link's target, followed by the extended
    attributes. Paths are the names' bytes as Latin-1, so that they all differ.
    """
    found = {"/": await _entry(fs, await fs.getattr(ROOT_INO))}
    below: list[tuple[str, Ino]] = [("", ROOT_INO)]
    while below:
        path, ino = below.pop()
        after = 0
        while entries := await fs.readdir(ino, after, BATCH):
            after = entries[-1].cookie
            for entry in entries:
                name = f"{path}/{entry.name.decode('latin-1')}"
                found[name] = await _entry(fs, entry.attr)
                if entry.attr.is_dir:
                    below.append((name, entry.attr.ino))
    return found


async def _entry(fs: Filesystem, attr: Attr) -> list[str | int]:
    content = ""
    if attr.is_file:
        content = await _digest(fs, attr.ino)
    elif attr.is_symlink:
        content = (await fs.readlink(attr.ino)).decode("latin-1")
    for name in await fs.listxattr(attr.ino):
        content += f" {name.decode('latin-1')}={(await fs.getxattr(attr.ino, name)).hex()}"
    size = attr.size if not stat.S_ISDIR(attr.mode) else 0
    return [attr.ino, attr.mode, attr.nlink, attr.uid, attr.gid, size, attr.mtime_ns, content]


async def _digest(fs: Filesystem, ino: Ino) -> str:
    handle = await fs.open(ino, os.O_RDONLY)
    digest, at = hashlib.sha256(), 0
    try:
        while piece := await handle.read(at, PIECE):
            digest.update(piece)
            at += len(piece)
    finally:
        await handle.close()
    return digest.hexdigest()
