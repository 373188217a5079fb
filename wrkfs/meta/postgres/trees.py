"""Converts the answer of `wrkfs.read_tree`. `rows` validates the values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt
from wrkfs.meta.interface.trees import Listing, TreeAnswer, TreeEntry
from wrkfs.meta.postgres import rows
from wrkfs.types import Ino

if TYPE_CHECKING:
    from wrkfs.meta.postgres.links import Rows

LEASE, DIRECTORY, ENTRY, FILE, LONG_FILE, DELEGATED = range(6)
"""Values of `tree_reply.part`."""
_COOKIE, _NAME = 23, 24


def answer(records: Rows) -> TreeAnswer:
    """Return the listings and leases in rows of `wrkfs.read_tree`. Raises Corrupt."""
    tree = TreeAnswer()
    entries: list[TreeEntry] = []
    filled = True
    for row in records:
        part = row[0]
        if part == LEASE:
            tree.leased.append(Ino(row[2]))
        elif part == DIRECTORY:
            complete = bool(row[_COOKIE])
            tree.listings.append(Listing(rows.attr(row), row[1], complete, filled, entries))
            entries, filled = [], True
        elif part == DELEGATED:
            entries, filled = [], True
        elif part in (ENTRY, FILE, LONG_FILE):
            file_map = rows.file_map(row) if part == FILE else None
            attr = rows.attr(row) if file_map is None else file_map.attr
            filled = filled and not (part == ENTRY and attr.is_file and attr.size)
            entries.append(TreeEntry(rows.named(row[_COOKIE], row[_NAME], attr), row[1], file_map))
        else:
            raise Corrupt("part of a tree")
    return tree
