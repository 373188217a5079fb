"""A store in memory that grants leases to one session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.doubles import meta_tree
from tests.doubles.meta_store import MemoryMeta
from tests.doubles.meta_volume import MemoryVolume
from wrkfs.errors import NotFound
from wrkfs.meta.postgres.sessions import boottime
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from wrkfs.meta.interface.trees import TreeAnswer, TreeRequest
    from wrkfs.types import Attr, Caller, Commit, Dentry, FileMap, SetAttr


class Lessor(MemoryMeta):
    """All answers are settled, and no lease is refused."""

    can_lease = True

    def __init__(self, volume: MemoryVolume | None = None) -> None:
        super().__init__(volume or MemoryVolume())
        self.leases: set[Ino] = set()
        self.sustained: list[list[Ino]] = []
        """Inodes of each call of `sustain`."""
        self.trees: list[TreeRequest] = []
        """Requests of `read_tree`."""
        self._on_recall: Callable[[Sequence[Ino]], None] = lambda _: None

    @property
    def trusted_until(self) -> float:
        return boottime() + 5.0

    def watch_leases(
        self,
        on_recall: Callable[[Sequence[Ino]], None],
        _on_void: Callable[[], None],
        _forget: Callable[[], Awaitable[None]],
        _held: Callable[[], Sequence[Ino]],
    ) -> None:
        self._on_recall = on_recall

    def recall(self, *inos: Ino) -> None:
        """Another session waits for leases."""
        self._on_recall(inos)

    async def take_lease(self, ino: Ino) -> bool:
        self.leases.add(ino)
        return True

    async def give_back(self, inos: Sequence[Ino]) -> None:
        self.leases.difference_update(inos)

    async def sustain(self, inos: Sequence[Ino]) -> None:
        self.sustained.append(sorted(inos))
        for ino in inos:
            await super().open(ino)

    def _placed(self, attr: Attr) -> Attr:
        """Return attributes with the directory of the name. Tests link within one directory."""
        alone = attr.is_dir or attr.nlink == 1
        return replace(attr, parent=self._volume.nodes[attr.ino].parent if alone else Ino(0))

    async def find(self, parent: Ino, name: bytes) -> tuple[Attr | None, bool]:
        try:
            return self._placed(await super().lookup(parent, name)), True
        except NotFound:
            return None, True

    async def stat(self, ino: Ino) -> tuple[Attr, bool]:
        return self._placed(await super().getattr(ino)), True

    async def entries(self, ino: Ino, after: int, limit: int) -> tuple[list[Dentry], bool]:
        found = await super().readdir(ino, after, limit)
        return [replace(one, attr=self._placed(one.attr)) for one in found], True

    async def read_tree(self, request: TreeRequest) -> TreeAnswer:
        self.trees.append(request)
        answer = meta_tree.read_tree(self._volume, request, self._placed)
        self.leases.update(answer.leased)
        return answer

    async def file_map(self, ino: Ino) -> FileMap:
        found = await super().file_map(ino)
        return replace(found, attr=self._placed(found.attr))

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        return self._placed(await super().setattr(ino, changes))

    async def commit(self, commit: Commit) -> Attr:
        return self._placed(await super().commit(commit))

    async def create(
        self,
        parent: Ino,
        name: bytes,
        mode: int,
        caller: Caller,
        *,
        exclusive: bool,
        durable: bool = False,
    ) -> tuple[FileMap, bool]:
        found, made = await super().create(
            parent, name, mode, caller, exclusive=exclusive, durable=durable
        )
        return replace(found, attr=self._placed(found.attr)), made

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        """Create a directory, which comes with a lease."""
        made = self._placed(await super().mkdir(parent, name, mode, caller))
        self.leases.add(made.ino)
        return made
