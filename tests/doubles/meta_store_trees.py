"""The part of `MemoryMeta` that copies trees; see `trees.CopyStore` for every method."""

from __future__ import annotations

import stat
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.doubles.meta_volume import Entry, Node
from wrkfs.errors import (
    ArgumentTooBig,
    Busy,
    Exists,
    InvalidArgument,
    NoSpace,
    NotFound,
    QuotaExceeded,
)
from wrkfs.meta import rules
from wrkfs.types import ROOT_INO, Attr, Ino, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.doubles.meta_volume import MemoryVolume


class MemoryTrees:
    """Clones and snapshots of a volume in memory."""

    _volume: MemoryVolume

    def _alive(self) -> MemoryVolume:
        raise NotImplementedError

    async def clone(self, source: Ino, parent: Ino, name: bytes, *, replace: bool = False) -> Attr:
        rules.check_name(name)
        volume = self._alive()
        rules.check_writable(parent)
        directory = volume.directory(parent)
        old = directory.entries.get(name)
        if old is not None:
            if not replace:
                raise Exists
            rules.check_writable(old.ino)
        now = time.time_ns() // 1000 * 1000
        copy = _Copy(volume, lambda: Ino(volume.fresh_id()), now)
        top = copy.make(source, parent)
        if old is not None:
            node = volume.nodes[old.ino]
            del directory.entries[name]
            volume.touch(directory, -int(node.attr.is_dir))
            volume.remove(node, parent, name, None)
        directory.entries[name] = Entry(top.attr.ino, volume.fresh_id())
        volume.touch(directory, int(top.attr.is_dir), now)
        return top.attr

    async def create_snapshot(self, source: Ino, name: bytes, path: bytes) -> Snapshot:
        rules.check_snapshot_name(name)
        volume = self._alive()
        if rules.is_read_only(source):
            raise InvalidArgument("a snapshot has no snapshots")
        root = volume.nodes[ROOT_INO]
        entry = root.entries.get(rules.SNAPSHOTS_NAME)
        if entry is not None and entry.ino != rules.SNAPSHOTS_INO:
            raise Busy
        if name in volume.snapshots:
            raise Exists
        if len(volume.snapshots) >= rules.SNAPSHOTS_MAX:
            raise NoSpace
        top = _Copy(volume, volume.fresh_snapshot_id, None, int(entry is None)).make(
            source, rules.SNAPSHOTS_INO
        )
        now = time.time_ns()
        if entry is None:
            ino = rules.SNAPSHOTS_INO
            home = Attr(ino, stat.S_IFDIR | 0o555, 2, 0, 0, 0, 0, now, now, now, 0)
            volume.nodes[ino] = Node(home)
            volume.inodes_used += 1
            root.entries[rules.SNAPSHOTS_NAME] = Entry(ino, ino)
            root.change(nlink=root.attr.nlink + 1)
        home_node = volume.nodes[rules.SNAPSHOTS_INO]
        home_node.entries[name] = Entry(top.attr.ino, top.attr.ino)
        volume.touch(home_node, int(top.attr.is_dir))
        nodes = _below(volume, top)
        size = sum(node.attr.size - node.attr.holes for node in nodes if node.attr.is_file)
        volume.snapshots[name] = Snapshot(
            name, top.attr.ino, path, datetime.now(UTC), len(nodes), size
        )
        return volume.snapshots[name]

    async def snapshots(self) -> list[Snapshot]:
        return sorted(self._volume.snapshots.values(), key=lambda one: one.ino)

    async def remove_snapshot(self, name: bytes) -> None:
        rules.check_snapshot_name(name)
        volume = self._alive()
        if name not in volume.snapshots:
            raise NotFound
        del volume.snapshots[name]
        home = volume.nodes[rules.SNAPSHOTS_INO]
        node = volume.nodes[home.entries.pop(name).ino]
        volume.touch(home, -int(node.attr.is_dir))
        volume.remove(node, rules.SNAPSHOTS_INO, name, None)


class _Copy:
    """One copy of a tree. `extra`: inodes that the call adds besides."""

    def __init__(
        self,
        volume: MemoryVolume,
        fresh: Callable[[], Ino],
        ctime_ns: int | None,
        extra: int = 0,
    ) -> None:
        self._volume = volume
        self._fresh = fresh
        self._ctime_ns = ctime_ns
        self._extra = extra

    def make(self, source: Ino, parent: Ino) -> Node:
        """Copies the tree below an inode; returns the top of the copy, which has no name yet."""
        volume = self._volume
        top = volume.nodes.get(source)
        if top is None or not top.attr.nlink:
            raise NotFound
        old = _below(volume, top)
        if sum(1 + len(node.entries) for node in old) > 2 * rules.TREE_MAX:
            raise ArgumentTooBig
        limit = volume.inodes_limit
        if limit is not None and volume.inodes_used + len(old) + self._extra > limit:
            raise QuotaExceeded
        numbers = {node.attr.ino: self._fresh() for node in old}
        names: dict[Ino, list[Ino]] = {source: [parent]}
        for node in old:
            for entry in _listed(node).values():
                names.setdefault(entry.ino, []).append(numbers[node.attr.ino])
        for node in old:
            ino = node.attr.ino
            volume.nodes[numbers[ino]] = self._node(node, numbers, names[ino])
        volume.inodes_used += len(old)
        return volume.nodes[numbers[source]]

    def _node(self, node: Node, numbers: dict[Ino, Ino], parents: list[Ino]) -> Node:
        attr = node.attr
        entries = {
            name: Entry(numbers[entry.ino], entry.cookie) for name, entry in _listed(node).items()
        }
        subdirectories = sum(self._volume.nodes[e.ino].attr.is_dir for e in _listed(node).values())
        copied = replace(
            attr,
            ino=numbers[attr.ino],
            nlink=2 + subdirectories if attr.is_dir else len(parents),
            ctime_ns=attr.ctime_ns if self._ctime_ns is None else self._ctime_ns,
        )
        return Node(
            copied,
            parents[0],
            node.target,
            entries,
            list(node.refs),
            dict(node.xattrs),
            {ref.slice_id for ref in node.refs},
        )


def _listed(node: Node) -> dict[bytes, Entry]:
    """The entries of a directory, without the directory of the snapshots."""
    ino = node.attr.ino
    return {k: entry for k, entry in node.entries.items() if not rules.is_unlisted(ino, k)}


def _below(volume: MemoryVolume, top: Node) -> list[Node]:
    """An inode and all below it, each once."""
    found, pending = {top.attr.ino: top}, [top]
    while pending:
        for entry in _listed(pending.pop()).values():
            if entry.ino not in found:
                found[entry.ino] = volume.nodes[entry.ino]
                pending.append(found[entry.ino])
    return list(found.values())
