"""A session on a `lease_store.Database`: what `LeasedMeta` sees of PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tests.doubles import meta_tree
from tests.doubles.meta_store import MemoryMeta
from tests.model.lease_request import Request
from wrkfs.errors import WrkfsError
from wrkfs.meta.interface.lease_times import TRUST
from wrkfs.types import Attr, Dentry, FileMap, Ino, Moved, RenameFlags

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from tests.model.lease_store import Database
    from wrkfs.meta.interface.trees import TreeAnswer, TreeRequest
    from wrkfs.types import Caller, Commit, SetAttr, SliceId

T = TypeVar("T")

EXPIRY = 6.0
"""The lease time (`wrkfs.lease_time` in SQL): other sessions wait so long."""


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


class LeaseSession(MemoryMeta):
    """A session that asks through the wires of a `Database`."""

    def __init__(self, database: Database, *, listens: bool) -> None:
        """`listens`: it may have leases."""
        super().__init__(database.volume)
        at_once(self.start())
        self.database = database
        self.listens = listens
        self.number = int(self._session)
        self.expires = database.now + EXPIRY
        self.trusted_until = database.now + TRUST
        self.db_tenure = self._tenure = 0
        self.inbox: list[list[Ino]] = []
        self.heard = self._asked = 0
        self._on_recall: Callable[[Sequence[Ino]], None] = lambda _: None
        self._on_void: Callable[[], None] = lambda: None
        database.sessions[self.number] = self

    @property
    def can_lease(self) -> bool:
        return self.listens

    def watch_leases(
        self,
        on_recall: Callable[[Sequence[Ino]], None],
        on_void: Callable[[], None],
        _forget: Callable[[], Awaitable[None]],
        _held: Callable[[], Sequence[Ino]],
    ) -> None:
        self._on_recall, self._on_void = on_recall, on_void

    def hear(self) -> None:
        """The next notification arrives."""
        self.heard += 1
        self._on_recall(self.inbox.pop(0))

    async def ask(self, kind: str, *args: object) -> Any:  # noqa: ANN401 each call has its own answer
        """Sends a call and waits for its answer."""
        self._asked += 1
        request = Request(self, self._asked, kind, args)
        self.send(request)
        return await request.future

    def send(self, request: Request) -> None:
        """A call leaves."""
        self.database.requests.append(request)

    async def beat(self) -> None:
        """A heartbeat; see sessions.MountSession."""
        began = self.database.now
        tenure = await self.ask("beat")
        if tenure != self._tenure:
            self._tenure = tenure
            self._on_void()
        self.trusted_until = began + TRUST

    # -- in the database --

    def answer(self, request: Request) -> None:
        """What is committed now."""
        try:
            request.answered(getattr(self, f"_do_{request.kind}")(*request.args))
        except WrkfsError as error:
            request.answered(error=error)

    def take_effect(self, request: Request) -> None:
        """A change is committed."""
        removed = self.database.removed(request)
        try:
            answer = at_once(self.meaning(request.kind, request.args))
        except WrkfsError as error:
            request.answered(error=error)
            return
        database, args = self.database, request.args
        if request.kind == "link":
            database.homes[args[0]] = Ino(0)
        elif request.kind == "rename":
            self._moved(*args)
        if isinstance(answer, tuple):
            if answer[1]:
                database.homes[answer[0].attr.ino] = args[0]
            answer = (self._shown_map(answer[0]), answer[1])
        elif isinstance(answer, FileMap):
            answer = self._shown_map(answer)
        elif isinstance(answer, Attr):
            answer = database.shown(answer)
        self.database.end_leases({(ino, self.number) for ino in removed})
        if request.kind == "mkdir" and self.listens and self.expires > database.now:
            database.leases.add((answer.ino, self.number))
        request.answered(answer)

    def meaning(self, kind: str, args: tuple[Any, ...]) -> Coroutine[Any, Any, Any]:
        """What `MemoryMeta` makes of a call."""
        if kind == "create":
            return super().create(*args[:-1], exclusive=args[-1])
        if kind == "sustain":
            return self._open_all(args[0])
        work: Coroutine[Any, Any, Any] = getattr(super(), kind)(*args)
        return work

    async def _open_all(self, inos: Sequence[Ino]) -> None:
        for ino in inos:
            if ino in self._volume.nodes:
                await super().open(ino)

    def _moved(self, _parent: Ino, _name: bytes, goal: Ino, new: bytes) -> None:
        node = self._volume.nodes[self._volume.nodes[goal].entries[new].ino]
        if not node.attr.is_dir:
            self.database.homes[node.attr.ino] = goal if node.attr.nlink == 1 else Ino(0)

    def _shown_map(self, found: FileMap) -> FileMap:
        return replace(found, attr=self.database.shown(found.attr))

    def _do_take_lease(self, ino: Ino) -> bool:
        database = self.database
        if self.expires < database.now or ino not in database.volume.nodes:
            return False
        if any(at == ino and who != self.number for at, who in database.recalls):
            return False
        database.leases.add((ino, self.number))
        return True

    def _do_give_back(self, inos: Sequence[Ino]) -> None:
        self.database.end_leases({(ino, self.number) for ino in inos})

    def _do_beat(self) -> int:
        self.expires = self.database.now + EXPIRY
        return self.db_tenure

    def _do_find(self, parent: Ino, name: bytes) -> tuple[Attr | None, bool]:
        if name not in self._volume.directory(parent).entries:
            return None, not self.database.locked(parent)
        attr = self._do_lookup(parent, name)
        return attr, not self.database.locked(parent, attr.ino)

    def _do_lookup(self, parent: Ino, name: bytes) -> Attr:
        return self.database.shown(at_once(super().lookup(parent, name)))

    def _do_stat(self, ino: Ino) -> tuple[Attr, bool]:
        return self._do_getattr(ino), not self.database.locked(ino)

    def _do_getattr(self, ino: Ino) -> Attr:
        return self.database.shown(at_once(super().getattr(ino)))

    def _do_readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        entries = at_once(super().readdir(ino, after, limit))
        return [replace(entry, attr=self.database.shown(entry.attr)) for entry in entries]

    def _do_entries(self, ino: Ino, after: int, limit: int) -> tuple[list[Dentry], bool]:
        entries = self._do_readdir(ino, after, limit)
        rows = [ino, *(entry.attr.ino for entry in entries)]
        return entries, not entries or not self.database.locked(*rows)

    def _do_read_tree(self, request: TreeRequest) -> TreeAnswer:
        database = self.database
        answer = meta_tree.read_tree(
            database.volume, request, database.shown, lambda ino: not database.locked(ino)
        )
        answer.leased = [ino for ino in answer.leased if self._do_take_lease(ino)]
        return answer

    def _do_parent(self, ino: Ino) -> Ino:
        return at_once(super().parent(ino))

    def _do_file_map(self, ino: Ino) -> FileMap:
        return self._shown_map(at_once(super().file_map(ino)))

    # -- what is asked --

    async def give_up(self, _slices: Mapping[SliceId, int]) -> None:
        await self.ask("settle")

    async def take_lease(self, ino: Ino) -> bool:
        return bool(await self.ask("take_lease", ino))

    async def give_back(self, inos: Sequence[Ino]) -> None:
        await self.ask("give_back", tuple(inos))

    async def find(self, parent: Ino, name: bytes) -> tuple[Attr | None, bool]:
        found: tuple[Attr | None, bool] = await self.ask("find", parent, name)
        return found

    async def stat(self, ino: Ino) -> tuple[Attr, bool]:
        found: tuple[Attr, bool] = await self.ask("stat", ino)
        return found

    async def entries(self, ino: Ino, after: int, limit: int) -> tuple[list[Dentry], bool]:
        found: tuple[list[Dentry], bool] = await self.ask("entries", ino, after, limit)
        return found

    async def read_tree(self, request: TreeRequest) -> TreeAnswer:
        answer: TreeAnswer = await self.ask("read_tree", request)
        return answer

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        found: Attr = await self.ask("lookup", parent, name)
        return found

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        found: list[Dentry] = await self.ask("readdir", ino, after, limit)
        return found

    async def parent(self, ino: Ino) -> Ino:
        return Ino(await self.ask("parent", ino))

    async def getattr(self, ino: Ino) -> Attr:
        found: Attr = await self.ask("getattr", ino)
        return found

    async def file_map(self, ino: Ino) -> FileMap:
        found: FileMap = await self.ask("file_map", ino)
        return found

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        found: Attr = await self.ask("setattr", ino, changes)
        return found

    async def commit(self, commit: Commit) -> Attr:
        found: Attr = await self.ask("commit", commit)
        return found

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
        found: tuple[FileMap, bool] = await self.ask(
            "create", parent, name, mode, caller, exclusive
        )
        return found

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        found: Attr = await self.ask("mkdir", parent, name, mode, caller)
        return found

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        found: Attr = await self.ask("link", ino, parent, name)
        return found

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        moved_ns: int | None = await self.ask("unlink", parent, name)
        return moved_ns

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        moved_ns: int | None = await self.ask("rmdir", parent, name)
        return moved_ns

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> Moved | None:
        """Rename without flags."""
        assert not flags
        moved: Moved | None = await self.ask("rename", parent, name, new_parent, new_name)
        return moved

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        """Open without truncating."""
        assert not truncate
        found: FileMap = await self.ask("open", ino)
        return found

    async def sustain(self, inos: Sequence[Ino]) -> None:
        await self.ask("sustain", tuple(inos))

    async def release(self, ino: Ino) -> None:
        await self.ask("release", ino)
