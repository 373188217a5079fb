"""What two kinds of files must hold in the simulation, whatever happens to who writes them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wrkfs.errors import NotFound, WrkfsError
from wrkfs.types import ROOT_INO, Caller, SetAttr

if TYPE_CHECKING:
    import random

    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle

ME = Caller(1000, 1000)
SIZES = (64, 1000, 70_000)
HUGE = (4 << 20) + 1000
"""A cell of more than a block: its upload starts while it is being written."""


@dataclass
class Open:
    """A handle, and the number of the last write that its errors have told of."""

    handle: FileHandle
    clean_since: int


@dataclass
class Cells:
    """A file of cells that one job writes, each as a whole with a number of its own.

    `possible` holds the numbers that a cell may show after a crash, `last` the one that it shows
    when nothing was lost. 0 is a cell of zeros, `cut_at` when it was last asked to be one.
    """

    name: bytes
    sizes: list[int]
    last: list[int] = field(default_factory=list)
    possible: list[set[int]] = field(default_factory=list)
    cut_at: list[int] = field(default_factory=list)
    writes: int = 0
    losses: int = 0

    def __post_init__(self) -> None:
        self.cut_at = [0] * len(self.sizes)
        self.last = [0] * len(self.sizes)
        self.possible = [{0} for _ in self.sizes]

    def start(self, cell: int) -> int:
        """Offset of a cell."""
        return sum(self.sizes[:cell])

    def fill(self, cell: int, number: int) -> bytes:
        """A cell's bytes."""
        size = self.sizes[cell]
        return (number.to_bytes(8, "big") * (size // 8 + 1))[:size]

    async def write(self, opened: Open, first: int, count: int) -> None:
        """Writes some cells in one call."""
        self.writes += 1
        cells = range(first, min(first + count, len(self.sizes)))
        for cell in cells:
            self.possible[cell].add(self.writes)
        number = self.writes
        data = b"".join(self.fill(cell, number) for cell in cells)
        await opened.handle.write(self.start(first), data)
        for cell in cells:
            self.last[cell] = number

    async def cut(self, fs: Filesystem, opened: Open, cell: int) -> None:
        """Truncates before a cell; who sees that sees nothing older."""
        self.writes += 1
        for later in range(cell, len(self.sizes)):
            self.possible[later].add(0)
            self.cut_at[later] = self.writes
        await fs.setattr(opened.handle.ino, SetAttr(size=self.start(cell)))
        for later in range(cell, len(self.sizes)):
            self.possible[later] = {0}
            self.last[later] = 0

    async def make_safe(self, opened: Open, *, close: bool) -> None:
        """fsync, or flush and close: success says that all is safe which no error told of."""
        written = list(self.last)
        try:
            if close:
                await opened.handle.close()
            else:
                await opened.handle.fsync()
        except WrkfsError:
            self.losses += 1
            opened.clean_since = self.writes
            return
        for cell, number in enumerate(written):
            if number > opened.clean_since:
                kept = {one for one in self.possible[cell] if one >= number}
                self.possible[cell] = kept | ({0} if self.cut_at[cell] > number else set())

    async def read(self, handle: FileHandle, cell: int) -> int:
        """The number that a cell shows. AssertionError for a torn one."""
        data = await handle.read(self.start(cell), self.sizes[cell])
        data = data.ljust(self.sizes[cell], b"\0")
        number = int.from_bytes(data[:8], "big")
        assert data == self.fill(cell, number), f"{self.name!r}: cell {cell} is torn"
        return number

    async def check(self, fs: Filesystem) -> None:
        """What is there now, as anybody sees it."""
        try:
            attr = await fs.lookup(ROOT_INO, self.name)
        except NotFound:
            assert not any(self.last), f"{self.name!r} is lost"
            return
        handle = await fs.open(attr.ino, os.O_RDONLY)
        for cell, possible in enumerate(self.possible):
            found = await self.read(handle, cell)
            assert found in possible, f"{self.name!r}: cell {cell} is {found}, not of {possible}"
        await handle.close()


@dataclass
class Log:
    """A file that several jobs append records to."""

    name: bytes
    written: int = 0
    required: set[int] = field(default_factory=set)
    allowed: set[int] = field(default_factory=set)

    async def append(self, opened: Open, chance: random.Random) -> int:
        """Appends one record; its number."""
        self.written += 1
        number = self.written
        self.allowed.add(number)
        size = chance.choice((0, 100, 100, 66_000))
        record = b"%09d %09d %s\n" % (number, size, b"x" * size)
        await opened.handle.write(0, record)
        return number

    async def check(self, fs: Filesystem) -> None:
        """Whole records, none twice, none foreign, and all that are required."""
        try:
            attr = await fs.lookup(ROOT_INO, self.name)
        except NotFound:
            assert not self.allowed, "the log is lost"
            return
        handle = await fs.open(attr.ino, os.O_RDONLY)
        data = await handle.read(0, attr.size + 1)
        await handle.close()
        found: list[int] = []
        at = 0
        while at < len(data):
            number, size = int(data[at : at + 9]), int(data[at + 10 : at + 19])
            end = at + 21 + size
            assert data[at + 20 : end] == b"x" * size + b"\n", f"record {number} is torn"
            found.append(number)
            at = end
        assert len(found) == len(set(found)), f"records twice: {found}"
        assert set(found) <= self.allowed
        assert self.required <= set(found), f"lost records: {self.required - set(found)}"


@dataclass
class Names:
    """Names that one job makes, moves and removes; True: there, False: not, None: either."""

    prefix: bytes
    there: dict[bytes, bool | None] = field(default_factory=dict)
    made: int = 0

    async def step(self, fs: Filesystem, chance: random.Random) -> bytes:
        """One call; the name that it was about."""
        sure = [name for name, state in self.there.items() if state]
        verb = chance.choice(("create", "rename", "unlink", "mkdir")) if sure else "create"
        name = chance.choice(sure) if sure else b""
        self.made += 1
        fresh = b"%s%d" % (self.prefix, self.made)
        if verb in ("create", "mkdir"):
            self.there[fresh] = None
            if verb == "create":
                _, handle = await fs.create(ROOT_INO, fresh, 0o600, os.O_RDWR | os.O_EXCL, ME)
                self.there[fresh] = True
                await close(handle)
            else:
                await fs.mkdir(ROOT_INO, fresh, 0o700, ME)
                self.there[fresh] = True
            return fresh
        self.there[name] = None
        if verb == "rename":
            self.there[fresh] = None
            await fs.rename(ROOT_INO, name, ROOT_INO, fresh)
            self.there[fresh] = True
        else:
            await fs.remove_tree(ROOT_INO, name)
        self.there[name] = False
        return name

    async def check(self, fs: Filesystem) -> None:
        """Every name that is sure."""
        found: set[bytes] = set()
        after = 0
        while entries := await fs.readdir(ROOT_INO, after, 50):
            after = entries[-1].cookie
            found |= {entry.name for entry in entries}
        for name, state in self.there.items():
            assert state is None or state == (name in found), f"{name!r} is {name in found}"
        assert {name for name in found if name.startswith(self.prefix)} <= set(self.there)


async def close(handle: FileHandle) -> None:
    """Closes; what it says of losses is of no interest."""
    try:
        await handle.close()
    except WrkfsError:
        return
