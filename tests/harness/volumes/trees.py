"""Trees of all objects that a volume can hold: strategies, creation, and comparison of states."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from wrkfs.layout import MIB, FileLayout
from wrkfs.types import ROOT_INO, Caller, SetAttr
from wrkfs.upkeep import trash

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from wrkfs.fs import Filesystem
    from wrkfs.types import Attr, Ino

FAR = 3 << 30
"""A far offset: most of such a file is a hole."""
UNIT = 4096
"""Block size in bytes for comparisons of content. Blocks of zeros are left out."""
BATCH = 1000


class Repeated(NamedTuple):
    """Repeated bytes, so that a failure is short to print."""

    data: bytes
    times: int = 1

    @property
    def whole(self) -> bytes:
        """Return all bytes."""
        return self.data * self.times


@dataclass(frozen=True)
class Node:
    """An object with a name; attributes as `SetAttr` takes them."""

    kind: str
    changes: SetAttr
    xattrs: dict[bytes, Repeated]
    pieces: tuple[tuple[int, Repeated], ...] = ()
    """For a file: offsets and bytes."""
    size: int = 0
    """For a file: its minimum size. Bytes that no piece covers are a hole."""
    target: bytes = b""
    """For a symbolic link: its target."""
    rdev: int = 0
    """For a device: its number."""


@dataclass(frozen=True)
class Folder(Node):
    """A directory."""

    entries: dict[bytes, Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """A further name of the inode with that number, in the directory with that number (modulo)."""

    inode: int
    directory: int
    name: bytes


def _is_name(name: bytes) -> bool:
    return name not in (b"", b".", b"..", b".wrkfs-load") and not set(name) & set(b"/\0")


NAMES = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from(
        [b"\n", b"a=b", b"%3D", b"%", b"\xff\xfe", b"n" * 255, b"\xff" * 255, b"-", b"-rf", b" "]
    ),
    st.text(min_size=1, max_size=20).map(lambda text: text.encode(errors="surrogatepass")),
).filter(_is_name)
TIMES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), -1, 0, 1, 10**9 - 1, 10**9, 2**63 - 1, -1_500_000_001]),
)
OWNERS = st.one_of(st.sampled_from([0, 1000, 2**21, 2**31, 2**32 - 2]), st.integers(0, 2**32 - 2))
XATTRS = st.dictionaries(
    st.builds(
        lambda space, name: space + name.replace(b"\0", b"0")[:240],
        st.sampled_from([b"user.", b"trusted."]),
        st.one_of(NAMES, st.binary(min_size=1, max_size=240)),
    ),
    st.binary(max_size=20).map(Repeated) | st.just(Repeated(b"\0\n=\xff", 16_384)),
    max_size=3,
)
CHANGES = st.builds(
    SetAttr,
    mode=st.integers(0, 0o7777),
    uid=OWNERS,
    gid=OWNERS,
    atime_ns=TIMES,
    mtime_ns=TIMES,
)
PIECES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 300_000), st.sampled_from([511, 512, 4 * MIB - 1, FAR])),
        st.binary(min_size=1, max_size=600).map(Repeated) | st.just(Repeated(b"stored", 12_000)),
    ),
    max_size=3,
).map(tuple)
TARGETS = st.one_of(
    st.binary(min_size=1, max_size=200).map(lambda target: target.replace(b"\0", b"0")),
    st.sampled_from([b"t" * 4095, b"nowhere", b".", b"/", b"\xff\n"]),
)
DEVICES = st.builds(os.makedev, st.integers(0, 4095), st.integers(0, 2**20 - 1))
LEAVES = st.one_of(
    st.builds(
        Node,
        kind=st.just("file"),
        changes=CHANGES,
        xattrs=XATTRS,
        pieces=PIECES,
        size=st.sampled_from([0, 0, 1, 100_000, FAR + 10**6]),
    ),
    st.builds(Node, kind=st.just("symlink"), changes=CHANGES, xattrs=XATTRS, target=TARGETS),
    st.builds(Node, kind=st.sampled_from(["fifo", "socket"]), changes=CHANGES, xattrs=XATTRS),
    st.builds(
        Node,
        kind=st.sampled_from(["character device", "block device"]),
        changes=CHANGES,
        xattrs=XATTRS,
        rdev=DEVICES,
    ),
)


def _folders(entries: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(
        Folder,
        kind=st.just("directory"),
        changes=CHANGES,
        xattrs=XATTRS,
        entries=st.dictionaries(NAMES, entries, max_size=4),
    )


TREES: st.SearchStrategy[Node] = _folders(st.recursive(LEAVES, _folders, max_leaves=12))
"""Directories with everything below them."""
LINKS = st.lists(
    st.builds(Link, st.integers(0, 20), st.integers(0, 20), NAMES.map(lambda name: name[:250])),
    max_size=6,
)


async def make(fs: Filesystem, top: Ino, tree: Node, links: list[Link], *others: Ino) -> None:
    """Create the entries of a tree in the directory `top`, and give it the tree's attributes.

    Further names are created there too, or in one of the directories `others`.
    """
    assert isinstance(tree, Folder)
    folders: list[tuple[Ino, Node]] = [(top, tree)]
    inodes: list[tuple[Ino, Node]] = []
    ahead = [(top, tree)]
    while ahead:
        parent, folder = ahead.pop()
        for name, node in folder.entries.items():
            made = await _make(fs, parent, name, node)
            if isinstance(node, Folder):
                ahead.append((made, node))
                folders.append((made, node))
            else:
                inodes.append((made, node))
    places = [*(ino for ino, _ in folders), *others]
    for number, link in enumerate(links if inodes else ()):
        name = b"%d" % number + link.name
        ino = inodes[link.inode % len(inodes)][0]
        await fs.link(ino, places[link.directory % len(places)], name)
    for ino, node in [*inodes, *folders]:
        for key, value in node.xattrs.items():
            await fs.setxattr(ino, key, value.whole)
        # No call changes the mode of a symbolic link: it is 0777.
        fixed = node.kind == "symlink"
        await fs.setattr(ino, replace(node.changes, mode=None) if fixed else node.changes)


async def _make(fs: Filesystem, parent: Ino, name: bytes, node: Node) -> Ino:
    who = Caller(1, 2)
    if node.kind == "directory":
        return (await fs.mkdir(parent, name, 0o755, who)).ino
    if node.kind == "symlink":
        return (await fs.symlink(parent, name, node.target, who)).ino
    if node.kind != "file":
        mode = {
            "fifo": stat.S_IFIFO,
            "socket": stat.S_IFSOCK,
            "character device": stat.S_IFCHR,
            "block device": stat.S_IFBLK,
        }[node.kind]
        return (await fs.mknod(parent, name, mode | 0o600, node.rdev, who)).ino
    attr, handle = await fs.create(parent, name, 0o600, os.O_RDWR, who)
    for at, data in node.pieces:
        await handle.write(at, data.whole)
    await handle.close()
    if node.size > max((at + len(data.whole) for at, data in node.pieces), default=0):
        await fs.setattr(attr.ino, SetAttr(size=node.size))
    return attr.ino


async def state(fs: Filesystem, top: Ino) -> dict[bytes, dict[str, Any]]:
    """Return all attributes but ctime of a directory and everything below it.

    The state includes contents, and which names are one inode. This function changes no atime.
    """
    shown: dict[bytes, dict[str, Any]] = {}
    first: dict[Ino, bytes] = {}
    async for path, attr in _walk(fs, b"", await fs.getattr(top)):
        shown[path] = {
            name: getattr(attr, name)
            for name in ("ino", "mode", "nlink", "uid", "gid", "rdev", "size", "atime_ns")
        }
        shown[path] |= {
            "mtime_ns": attr.mtime_ns,
            "xattrs": {
                name: await fs.getxattr(attr.ino, name) for name in await fs.listxattr(attr.ino)
            },
            "same as": first.setdefault(attr.ino, path),
        }
        if attr.is_symlink:
            shown[path]["target"] = await fs.stores.meta.readlink(attr.ino)
        if attr.is_file:
            shown[path]["held"] = attr.size - attr.holes
            shown[path]["content"], shown[path]["parts"] = await _content(fs, attr)
    return shown


async def _walk(fs: Filesystem, path: bytes, attr: Attr) -> AsyncIterator[tuple[bytes, Attr]]:
    yield path, attr
    if not attr.is_dir:
        return
    after, entries = 0, []
    while page := await fs.stores.meta.readdir(attr.ino, after, BATCH):
        entries += page
        after = page[-1].cookie
    for entry in sorted(entries, key=lambda entry: entry.name):
        async for found in _walk(fs, path + b"/" + entry.name, entry.attr):
            yield found


async def _content(fs: Filesystem, attr: Attr) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
    """Return the blocks that are not zero, by offset, and the data ranges as starts and ends."""
    layout = FileLayout(await fs.file_map(attr.ino))
    blocks: dict[int, bytes] = {}
    parts: list[tuple[int, int]] = []
    handle = await fs.open(attr.ino, os.O_RDONLY | os.O_NOATIME)
    for part in layout.between(0, layout.size):
        if parts and parts[-1][1] == part.start:
            parts[-1] = (parts[-1][0], part.end)
        else:
            parts.append((part.start, part.end))
        for at, block in _blocks(part.start, part.end):
            data = await handle.read(at, block)
            if data.strip(b"\0"):
                blocks[at] = bytes(data)
    await handle.close()
    return blocks, parts


def _blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    for at in range(start - start % UNIT, end, UNIT):
        yield at, UNIT


async def check_trash(fs: Filesystem, tree: Node, links: list[Link], *, at_once: bool) -> None:
    """Create a tree in an empty volume, remove and restore it, and compare the whole state.

    Some further names are in a directory beside it, which stays. With `at_once`, one call removes
    the tree, as over HTTP. Otherwise one call removes each name, as `rm -rf` does.
    """
    top = (await fs.mkdir(ROOT_INO, b"top", 0o700, Caller(0, 0))).ino
    beside = (await fs.mkdir(ROOT_INO, b"beside", 0o700, Caller(0, 0))).ino
    await make(fs, top, tree, links, beside)
    before, before_beside = await state(fs, top), await state(fs, beside)
    use = await fs.statfs()
    if at_once:
        await fs.remove_tree(ROOT_INO, b"top")
    else:
        await remove(fs, ROOT_INO, b"top")
    assert [entry.name for entry in await fs.stores.meta.readdir(ROOT_INO, 0, 10)] == [b"beside"]
    done = await trash.restore(fs, b"top")
    assert (done.missing, done.earlier) == ({}, [])
    assert_same(await state(fs, top), before)
    assert_same(await state(fs, beside), before_beside)
    assert await fs.statfs() == use
    assert [removed async for removed in trash.entries(fs)] == []


async def remove(fs: Filesystem, parent: Ino, name: bytes) -> None:
    """Remove name by name like `rm -rf`, but without the atimes that its reads change."""
    ino = (await fs.lookup(parent, name)).ino
    for entry in await fs.stores.meta.readdir(ino, 0, BATCH):
        if entry.attr.is_dir:
            await remove(fs, ino, entry.name)
        else:
            await fs.unlink(ino, entry.name)
    await fs.rmdir(parent, name)


def assert_same(after: dict[bytes, dict[str, Any]], before: dict[bytes, dict[str, Any]]) -> None:
    """Check that two states are equal; the error names the differing attributes."""
    names = after.keys() ^ before.keys()
    assert not names, f"not in both: {sorted(names)[:5]}"
    other = {
        (path, name): (before[path][name], after[path].get(name))
        for path in before
        for name in before[path]
        if before[path][name] != after[path].get(name)
    }
    assert not other, str(other)[:2000]
