"""A mount with write delegations in a `DelegationWorld`, and the journals of its host."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple, Unpack, cast

from tests.model.delegations.session import DelegationSession
from tests.model.lease_mount import Mount
from tests.model.schedules import StepLoop
from wrkfs.meta.delegations.journal import LeftBatch
from wrkfs.meta.delegations.store import DelegatedMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextvars import Context

    from tests.model.delegations.store import DelegationDatabase
    from tests.model.delegations.world import DelegationWorld
    from tests.model.lease_mount import Op
    from wrkfs.meta.delegations.delta import Record
    from wrkfs.meta.delegations.journal import Owner
    from wrkfs.meta.interface.delegations import DelegationStore
    from wrkfs.types import Ino, SessionId

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOUNT: ContextVar[DelegatingMount | None] = ContextVar("MOUNT", default=None)
"""The mount whose code runs."""
SCHEMA = "volume"


@dataclass(slots=True)
class Alarm:
    """A timer of the flusher of a mount."""

    mount: DelegatingMount
    number: int
    timer: asyncio.TimerHandle


class AlarmLoop(StepLoop):
    """A loop whose timers of flushers are events."""

    def __init__(self) -> None:
        super().__init__()
        self.alarms: list[Alarm] = []

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Make a callback ready when the explorer chooses its alarm."""
        timer = super().call_at(when, callback, *args, context=context)
        task, mount = asyncio.current_task(self._self), MOUNT.get()
        if mount is not None and task is not None and task.get_name() == "wrkfs flusher":
            mount.alarms += 1
            self.alarms.append(Alarm(mount, mount.alarms, timer))
        return timer

    def ring(self, alarm: Alarm) -> None:
        """Let a timer end."""
        self.alarms.remove(alarm)
        self._ready.append(alarm.timer)


# -- journals --


@dataclass(slots=True)
class JournalFiles:
    """The directory of a journal on a host's disk."""

    owner: Owner
    segments: dict[int, list[Record]] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    """By batch: the batch that it depends on."""
    locked_by: object = None


DISKS: dict[Path, list[JournalFiles]] = {}
"""The journals below each directory."""


class MemoryJournal:
    """Stands for `journal.Journal`."""

    def __init__(self, root: Path, owner: Owner, first: int = 1) -> None:
        self._files = JournalFiles(owner, locked_by=MOUNT.get())
        self._root = root
        self._number = self._after = 0
        DISKS.setdefault(root, []).append(self._files)
        self.begin(first, after=0)

    def begin(self, number: int, *, after: int | None = None) -> None:
        if after is not None:
            self._after = after
        elif self._files.segments.get(self._number):
            self._after = self._number
        self._number = number
        self._files.segments[number] = []
        self._files.after[number] = self._after

    def append(self, records: Sequence[Record]) -> None:
        self._files.segments[self._number].extend(records)

    def drop(self, number: int) -> None:
        if number == self._number and self._files.segments.get(number):
            self._after = number
        self._files.segments.pop(number, None)

    def keep_lost(self) -> Path | None:
        return None

    def close(self, *, keep: bool = False) -> None:
        if not keep and self._files in DISKS[self._root]:
            DISKS[self._root].remove(self._files)
        self._files.locked_by = None


class LeftFiles:
    """Stands for `journal.LeftJournal`."""

    fault = ""

    def __init__(self, root: Path, files: JournalFiles) -> None:
        self.owner = files.owner
        self.path = root
        self.applied: set[int] = set()
        self._files = files
        files.locked_by = MOUNT.get()

    def has_entries(self) -> bool:
        return any(self._files.segments.values())

    def batches(self) -> Iterator[LeftBatch]:
        for number, records in sorted(self._files.segments.items()):
            after = self._files.after[number]
            yield LeftBatch(number, after, records, is_whole=True, fits=True)

    def release(self) -> None:
        self._files.locked_by = None

    def close(self, *, lost: bool) -> Path | None:
        if self._files in DISKS[self.path]:
            DISKS[self.path].remove(self._files)
        self.release()
        return self.path if lost else None


def left_journals(root: Path, _schema: str) -> tuple[list[LeftFiles], set[SessionId]]:
    """Stands for `journal.left_journals`."""
    left = [files for files in DISKS.get(root, ()) if files.locked_by is None]
    busy = {files.owner.session for files in DISKS.get(root, ()) if files.locked_by is not None}
    return [LeftFiles(root, files) for files in left], busy


async def inline(work: Callable[..., T], *args: object) -> T:
    """Stands for `asyncio.to_thread`."""
    return work(*args)


# -- clients --


class Closing(Mount):
    """A client that closes what it creates, and whose kernel locks inodes for its changes."""

    _locked: dict[Ino, asyncio.Future[None]]

    async def create(self, parent: Ino, name: bytes) -> Ino:
        """CREATE, and close."""
        ino = await super().create(parent, name)
        await self.meta.release(ino)
        return ino

    async def do(self, op: Op) -> object:
        """One call of a program."""
        inos = self._inodes(op)
        while busy := [self._locked[ino] for ino in inos if ino in self._locked]:
            await busy[0]
        done = asyncio.get_running_loop().create_future()
        self._locked.update(dict.fromkeys(inos, done))
        try:
            return await super().do(op)
        finally:
            for ino in inos:
                del self._locked[ino]
            done.set_result(None)

    def _inodes(self, op: Op) -> set[Ino]:
        """Return the inodes that the kernel locks: directories, and what leaves them."""
        if op[0] == "chmod":
            return {op[1]}
        places = {"create": 1, "mkdir": 1, "unlink": 1, "rmdir": 1, "rename": 2}.get(op[0], 0)
        found = [op[1 + 2 * n : 3 + 2 * n] for n in range(places)]
        named = (self._ino(parent, name) for parent, name in found)
        return {parent for parent, _ in found} | {ino for ino in named if ino is not None}


class PlainClient(Closing):
    """The HTTP client: it caches nothing."""

    def __init__(self, world: DelegationWorld) -> None:
        super().__init__(world, leases=False)
        self._locked = {}

    def _make_session(self, *, listens: bool) -> DelegationSession:
        database = cast("DelegationDatabase", self.world.database)
        return DelegationSession(database, listens=listens, delegates=False)


class DelegatingMount(Closing):
    """A mount with delegations, and the kernel above it. `host` has its journals."""

    session: DelegationSession

    def __init__(self, world: DelegationWorld, host: str) -> None:
        self.world = world
        self.host = host
        self.alarms = 0
        self.killed = False
        database = world.database
        self.session = DelegationSession(database, listens=True, delegates=True)
        self.number = self.session.number
        inner = cast("DelegationStore", self.session)
        self.meta = self.delegated = DelegatedMeta(inner, SCHEMA, Path(host))
        self.leased = self.delegated._leased
        self.leased.table.on_drop = self.drop
        self.names = {}
        self.attrs = {}
        self.open_files = Counter()
        self.changing = []
        self._drops = 0
        self._locked = {}
        self.flusher = flusher = self.delegated._flusher
        record = flusher.record

        def recorded(records: Sequence[Record]) -> None:
            record(records)
            database.decided(self.number, flusher._open.number, records)

        vars(flusher)["record"] = recorded

    async def start(self) -> None:
        """Start the store."""
        MOUNT.set(self)
        await self.delegated.start()

    async def fsync(self) -> None:
        """Fsync: what was answered before must be in the database afterwards."""
        database = cast("DelegationDatabase", self.world.database)
        before = list(database.pending.get(self.number, ()))
        await self.delegated.sync()
        left = [one for one in database.pending.get(self.number, ()) if one in before]
        if left:
            database.broken.append(f"client {self.number}: fsync returned before {left}")
