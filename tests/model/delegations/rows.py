"""Rows of a `DelegationDatabase`: those that records and batches describe, and durable copies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.doubles.meta_volume import Entry, Node
from wrkfs.meta.delegations import delta
from wrkfs.types import Attr, Extent, Ino, SliceId, SliceRef

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from tests.model.delegations.store import DelegationDatabase
    from tests.model.lease_store import State
    from wrkfs.meta.delegations.delta import Record


def overlaid(
    records: Iterable[Record], names: dict[tuple[Ino, bytes], Ino], attrs: dict[Ino, Attr]
) -> None:
    """Change names and attributes as the records say."""
    for kind, *values in records:
        if kind == delta.INODE:
            attr = Attr(*values[1:])
            attrs[attr.ino] = attr
        elif kind == delta.PUT:
            names[values[0], values[1]] = values[2]
        elif kind == delta.CUT:
            names.pop((values[0], values[1]), None)
        elif kind == delta.GONE:
            attrs.pop(values[0], None)


def differences(before: State, after: State) -> set[Hashable]:
    """Return the names and inodes in which two states differ."""
    names = before.names.items() ^ after.names.items()
    inos = before.attrs.keys() | after.attrs.keys()
    changed = {ino for ino in inos if before.attrs.get(ino) != after.attrs.get(ino)}
    return {key for key, _ in names} | changed


class Batch:
    """The arrays of `wrkfs.apply` as rows."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        (ino, new, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, version) = arguments[:12]
        (parent, holes) = arguments[12:14]
        columns = (ino, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, version)
        self.attrs = [Attr(*row) for row in zip(*columns, holes, parent, strict=True)]
        self.new = {one for one, is_new in zip(ino, new, strict=True) if is_new}
        self.cut = list(zip(*arguments[14:16], strict=True))
        self.put = list(zip(*arguments[16:20], strict=True))
        self.extents = [
            (Ino(row[0]), Extent(row[1], SliceId(row[2]), row[3], row[4], row[5]))
            for row in zip(*arguments[23:29], strict=True)
        ]
        self.gone: list[Ino] = list(arguments[29])
        self.inos = {*ino, *self.gone}


def put(database: DelegationDatabase, owner: int, batch: Batch) -> None:
    """Change the rows as a batch of a session says."""
    nodes = database.volume.nodes
    there = [attr.ino for attr in batch.attrs if attr.ino in nodes]
    if set(there) & batch.new or len(there) + len(batch.new) != len(batch.attrs):
        database.broken.append(f"a batch of session {owner} does not fit the rows")
    for parent, name in batch.cut:
        if parent in nodes:
            nodes[parent].entries.pop(name, None)
    for attr in batch.attrs:
        node = nodes.get(attr.ino)
        if node is None:
            node = nodes[attr.ino] = Node(attr)
            database.volume.inodes_used += 1
        node.attr = replace(attr, parent=Ino(0))
        if attr.is_dir:
            node.parent = attr.parent
        else:
            database.homes[attr.ino] = attr.parent
    for parent, name, ino, cookie in batch.put:
        if parent in nodes:
            before = nodes[parent].entries.get(name)
            nodes[parent].entries[name] = Entry(ino, cookie if before is None else before.cookie)
    for ino, extent in batch.extents:
        length = extent.length
        nodes[ino].refs.append(
            SliceRef(extent.pos, SliceId(extent.slice_id), length, 0, length, b"", extent.inline)
        )
    for ino in batch.gone:
        if ino in nodes:
            nodes[ino].attr = replace(nodes[ino].attr, nlink=0)
            database.end_leases({(ino, owner)})
            database.end_delegations([ino], owner)
            database.volume.free_if_unused(nodes[ino])
    for attr in batch.attrs:
        is_granted = attr.ino in batch.new and attr.is_dir and owner not in database.fenced
        if is_granted and "no_implied_grants" not in database.faults:
            database.leases.add((attr.ino, owner))
            database.delegations.setdefault(attr.ino, owner)


@dataclass(frozen=True, slots=True)
class Saved:
    """The durable state."""

    nodes: dict[Ino, Node]
    homes: dict[Ino, Ino]
    delegations: dict[Ino, int]
    applied: dict[int, int]

    @classmethod
    def of(cls, database: DelegationDatabase) -> Saved:
        """Copy the state of a database."""
        nodes = {ino: _copied(node) for ino, node in database.volume.nodes.items()}
        return cls(nodes, dict(database.homes), dict(database.delegations), dict(database.applied))

    def restore(self, database: DelegationDatabase) -> None:
        """Give a database this state."""
        database.volume.nodes = {ino: _copied(node) for ino, node in self.nodes.items()}
        database.homes = dict(self.homes)
        database.delegations = dict(self.delegations)
        database.applied = dict(self.applied)


def _copied(node: Node) -> Node:
    entries = {name: Entry(entry.ino, entry.cookie) for name, entry in node.entries.items()}
    return replace(node, entries=entries, refs=list(node.refs))
