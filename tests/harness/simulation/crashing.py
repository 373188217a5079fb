"""Memory stores that a test can stop at a point, and the content that the volume would then have.

The points lie between two effects: a crash at any moment is equal to a crash at one of them.
`before_upload` and `after_upload` surround the upload of one object. `before_commit` and
`after_commit` surround one change of the metadata. `before_ack` lies between the last effect of a
call and its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from tests.doubles.meta_store import MemoryMeta
from wrkfs.errors import StorageError
from wrkfs.fs import Filesystem
from wrkfs.layout import BLOCK_SIZE, block_key
from wrkfs.types import ROOT_INO, Commit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.doubles.block_store import MemoryBlocks
    from tests.doubles.meta_volume import MemoryVolume, Node
    from wrkfs.data.interface import BlockStore
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.types import Ino

    Trip: TypeAlias = Callable[[str, str], Awaitable[None]]
    Method: TypeAlias = Callable[..., Awaitable[object]]

POINTS = ("before_upload", "after_upload", "before_commit", "after_commit", "before_ack")
CHANGES = frozenset(
    {
        "setattr",
        "create",
        "mknod",
        "mkdir",
        "symlink",
        "link",
        "unlink",
        "rmdir",
        "remove_tree",
        "rename",
        "open",
        "release",
        "commit",
        "allocate",
        "copy_range",
        "create_unlinked",
        "publish",
        "sync",
        "setxattr",
        "removexattr",
        "reserve_slices",
    }
)
"""Calls of a metadata store that change something."""


class Died(BaseException):
    """The process of this client has ended: none of its later calls has any effect."""


class Trap:
    """Springs once, at a point: raises StorageError there, or ends the client."""

    def __init__(self) -> None:
        self.dead = False
        self.sprung = False
        self.trips = 0
        self._point = ""
        self._kill = False

    def set(self, point: str, *, kill: bool) -> None:
        """Set the trap for the next passage of `point`."""
        self._point, self._kill, self.sprung = point, kill, False

    async def __call__(self, point: str, verb: str) -> None:
        """Check the trap when a client passes a point."""
        if self.dead:
            raise Died
        self.trips += 1
        if point == self._point:
            self._point, self.sprung = "", True
            if self._kill:
                self.dead = True
                raise Died
            raise StorageError(f"{point} of {verb}")


class Guarded:
    """A store whose calls pass points before and after; all else is that of the store."""

    def __init__(self, inner: object, trip: Trip, methods: frozenset[str], kind: str) -> None:
        self._inner = inner
        self._trip = trip
        self._methods = methods
        self._kind = kind

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if name not in self._methods:
            return found
        method = cast("Method", found)

        async def guarded(*args: object, **named: object) -> object:
            durable = bool(args) and isinstance(args[0], Commit) and args[0].durable
            durable = durable or bool(named.get("durable"))
            verb = f"durable {name}" if durable else name
            await self._trip(f"before_{self._kind}", verb)
            answer = await method(*args, **named)
            await self._trip(f"after_{self._kind}", verb)
            return answer

        return guarded


async def guarded_filesystem(volume: MemoryVolume, blocks: MemoryBlocks, trip: Trip) -> Filesystem:
    """Return a session of a volume in memory whose effects all pass a point."""
    meta = MemoryMeta(volume)
    await meta.start()
    return Filesystem(
        cast("MetaStore", Guarded(meta, trip, CHANGES, "commit")),
        cast("BlockStore", Guarded(blocks, trip, frozenset({"put"}), "upload")),
    )


def shown(volume: MemoryVolume, objects: dict[str, bytes]) -> dict[bytes, tuple[object, ...]]:
    """Return the content of each path: (kind, inode, content, extended attributes)."""
    found: dict[bytes, tuple[object, ...]] = {}
    below: list[tuple[bytes, Ino]] = [(b"", ROOT_INO)]
    while below:
        path, ino = below.pop()
        for name, entry in volume.nodes[ino].entries.items():
            node = volume.nodes[entry.ino]
            xattrs = tuple(sorted(node.xattrs.items()))
            if node.attr.is_dir:
                below.append((path + b"/" + name, entry.ino))
                found[path + b"/" + name] = ("directory", entry.ino, b"", xattrs)
            elif node.attr.is_symlink:
                found[path + b"/" + name] = ("symlink", entry.ino, node.target, xattrs)
            else:
                data = file_bytes(node, objects)
                found[path + b"/" + name] = ("file", entry.ino, data, xattrs)
    return found


def file_bytes(node: Node, objects: dict[str, bytes]) -> bytes:
    """Return a file's bytes: refs overlaid oldest first, holes as zeros.

    Raises KeyError for a lost object.
    """
    content = bytearray(node.attr.size)
    for ref in node.refs:
        data = ref.inline
        if data is None:
            blocks = range(-(-ref.size // BLOCK_SIZE))
            data = b"".join(objects[block_key("volume", ref.slice_id, n)] for n in blocks)
        assert len(data) == ref.size
        assert ref.pos + ref.length <= len(content), "a ref reaches beyond the size"
        content[ref.pos : ref.pos + ref.length] = data[ref.off : ref.off + ref.length]
    return bytes(content)
