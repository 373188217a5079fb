"""`LeaseStore.read_tree` on a `MemoryVolume`, without the leases that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.layout import INLINE_MAX
from wrkfs.meta.interface.trees import Listing, TreeAnswer, TreeEntry
from wrkfs.types import Dentry, FileMap

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.doubles.meta_volume import MemoryVolume
    from wrkfs.meta.interface.trees import TreeRequest
    from wrkfs.types import Attr, Ino

_REFS = 16


def _all_settled(_ino: Ino) -> bool:
    return True


def read_tree(
    volume: MemoryVolume,
    request: TreeRequest,
    placed: Callable[[Attr], Attr],
    settled: Callable[[Ino], bool] = _all_settled,
) -> TreeAnswer:
    """Return the listings of a request. `leased` has the directories that the store leases.

    `placed` sets the parent of attributes; `settled` is True if no change of an inode runs.
    """
    answer = TreeAnswer()
    entries, content, after = request.entries, request.content, request.after
    children: list[Ino] = []
    for ino in request.directories:
        if entries <= 0 or (request.maps_only and content <= 0):
            break
        node = volume.nodes.get(ino)
        if node is None or not node.attr.is_dir or not node.attr.nlink:
            continue
        ordered = sorted(
            (entry.cookie, name, entry.ino)
            for name, entry in node.entries.items()
            if entry.cookie > after
        )
        after = 0
        listing = Listing(placed(node.attr), settled(ino), len(ordered) < entries, True, [])
        over, limit = False, content
        for cookie, name, child in ordered[:entries]:
            attr = placed(volume.nodes[child].attr)
            entry = TreeEntry(Dentry(cookie, name, attr), settled(child))
            listing.entries.append(entry)
            if attr.is_dir:
                children.append(child)
            if not attr.is_file or not attr.size:
                continue
            refs = tuple(volume.nodes[child].refs)
            size = sum(len(ref.checksums if ref.inline is None else ref.inline) for ref in refs)
            if limit > 0 and (len(refs) > _REFS or size > INLINE_MAX):
                continue
            over = over or size > content or limit <= 0
            if over:
                listing.filled = False
                if request.maps_only:
                    listing.complete = False
                    break
            else:
                entry.file_map = FileMap(attr, refs)
                content -= size
        content = 0 if over else content
        entries -= len(listing.entries) + 1
        answer.listings.append(listing)
    answer.leased = [
        ino
        for ino in (*request.take, *children[: request.leases])
        if ino in volume.nodes and volume.nodes[ino].attr.is_dir
    ]
    return answer
