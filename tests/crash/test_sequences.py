"""CR-5: short sequences of calls, each followed by a call that makes it safe; a crash anywhere.

The operations and the ways to make them safe are few, so all sequences of length one and two are
run, and a sample of length three. Two crashes are looked at, each after every change that reaches
the volume: the client's (its dirty bytes are gone) and the database's (it also forgets what was
answered after the last durable commit). Afterwards all that was made safe must be there, in a state
that the volume really had: names as of one moment, each file's bytes as of one moment.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.doubles.block_store import MemoryBlocks
from tests.doubles.meta_volume import MemoryVolume
from tests.harness.simulation.crashing import guarded_filesystem, shown
from wrkfs.types import ROOT_INO, Caller, SetAttr

if TYPE_CHECKING:
    from tests.plugins.figures import Figures
    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle
    from wrkfs.types import Ino

ME = Caller(1000, 1000)
OPERATIONS = (
    "creat",
    "mkdir",
    "write",
    "append",
    "link",
    "symlink",
    "rename",
    "unlink",
    "truncate",
    "xattr",
)
WAYS = ("fsync", "fdatasync", "sync", "close")
STEPS = tuple(itertools.product(OPERATIONS, WAYS))

Step: TypeAlias = tuple[str, str]
Names: TypeAlias = dict[bytes, tuple[object, ...]]


@dataclass
class Moment:
    """What the volume showed after a change of it."""

    names: Names
    bytes_of: dict[object, bytes]


@dataclass
class Expected:
    """What must hold: `names` is the tree as it was answered, moment by moment."""

    names: list[Names] = field(default_factory=list)
    content: dict[object, list[bytes]] = field(default_factory=dict)
    safe_names: int = 0
    safe_content: dict[object, int] = field(default_factory=dict)

    def allows(self, seen: Moment) -> str:
        """Empty, or what is wrong with a state."""
        if seen.names not in self.names[self.safe_names :]:
            return f"names {sorted(seen.names)}"
        for ino, data in seen.bytes_of.items():
            if data not in self.content[ino][self.safe_content.get(ino, 0) :]:
                return f"bytes of inode {ino}: {len(data)} of them"
        return ""


class Play:
    """One sequence on a fresh volume.

    `moments` gets an entry with each change of the volume; `durable` is the place of the first one
    that a crash of the database can leave.
    """

    def __init__(self) -> None:
        self.volume = MemoryVolume()
        self.blocks = MemoryBlocks()
        self.moments: list[Moment] = []
        self.durable = 0
        self.expected = Expected()
        self.names: Names = {}
        self.fs: Filesystem
        self.directory: Ino
        self.ino: Ino
        self.handle: FileHandle | None = None
        self.path: bytes | None = b"/a"

    async def trip(self, point: str, verb: str) -> None:
        """Keeps what the volume shows after a change."""
        if point == "after_commit":
            self.moments.append(self.moment())
            if verb in ("sync", "publish", "durable commit", "durable create"):
                self.durable = len(self.moments) - 1

    def moment(self) -> Moment:
        """What the volume shows now."""
        names: Names = {}
        bytes_of = {}
        for path, (kind, ino, content, xattrs) in shown(self.volume, self.blocks.objects).items():
            names[path] = (kind, ino, b"" if kind == "file" else content, xattrs)
            if kind == "file":
                assert isinstance(content, bytes)
                bytes_of[ino] = content
        return Moment(names, bytes_of)

    async def begin(self) -> None:
        """A volume with two files and a directory, all safe."""
        self.fs = await guarded_filesystem(self.volume, self.blocks.attach(), self.trip)
        for name in (b"over", b"a"):
            _, handle = await self.fs.create(ROOT_INO, name, 0o644, os.O_RDWR, ME)
            await handle.write(0, name * 50)
            await handle.close()
            self.ino = handle.ino
        self.directory = (await self.fs.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
        await self.fs.sync()
        self.moments, self.durable = [self.moment()], 0
        start = self.moments[0]
        self.names = dict(start.names)
        self.expected.names = [start.names]
        self.expected.content = {ino: [data] for ino, data in start.bytes_of.items()}

    async def step(self, number: int, operation: str, way: str) -> None:
        """One call and the one that makes it safe, with all crashes in between."""
        first = len(self.moments)
        safe = await self.operate(number, operation)
        self.expected.names.append(dict(self.names))
        self.check(first)
        floor = await self.make_safe(way, safe)
        self.check(first)
        self.expected.safe_names = len(self.expected.names) - 1
        for ino in floor:
            self.expected.safe_content[ino] = len(self.expected.content[ino]) - 1
        self.check(self.durable)

    def check(self, first: int) -> None:
        """Every moment from `first` on may be what a crash leaves."""
        for seen in self.moments[first:]:
            wrong = self.expected.allows(seen)
            assert not wrong, wrong

    async def make_safe(self, way: str, handle: FileHandle) -> list[object]:
        """The inodes whose bytes must be safe then."""
        if way == "sync":
            await self.fs.sync()
            return list(self.expected.content)
        if way == "close":
            await handle.flush()
            await handle.close(flushed=True)
            self.handle = None if handle is self.handle else self.handle
        else:
            await handle.fsync()
        return [handle.ino]

    async def main(self) -> FileHandle:
        """The open main file."""
        if self.handle is None:
            self.handle = await self.fs.open(self.ino, os.O_RDWR)
        return self.handle

    def becomes(self, data: bytes) -> None:
        """The main file's bytes after a call."""
        self.expected.content[self.ino].append(data)

    async def operate(self, number: int, operation: str) -> FileHandle:
        """The call; the file whose safety is asked for next. A gone main file is made anew."""
        if self.path is None and self.handle is None:
            operation = "creat"
        handle = None if operation == "creat" else await self.main()
        kinds = {
            "creat": self.creat,
            "mkdir": self.mkdir,
            "symlink": self.symlink,
            "write": self.change,
            "append": self.change,
            "truncate": self.change,
        }
        await kinds.get(operation, self.name)(number, operation)
        return handle if handle is not None else await self.main()

    async def creat(self, number: int, _operation: str) -> None:
        """A new file, the main one from now on."""
        if self.handle is not None:
            await self.handle.close()
        name = b"n%d" % number
        _, self.handle = await self.fs.create(ROOT_INO, name, 0o600, os.O_RDWR, ME)
        self.ino = self.handle.ino
        self.expected.content[self.ino] = [b""]
        self.path = b"/" + name
        self.names[self.path] = ("file", self.ino, b"", ())

    async def mkdir(self, number: int, _operation: str) -> None:
        """A new directory."""
        made = await self.fs.mkdir(ROOT_INO, b"m%d" % number, 0o700, ME)
        self.names[b"/m%d" % number] = ("directory", made.ino, b"", ())

    async def symlink(self, number: int, _operation: str) -> None:
        """A new symbolic link."""
        made = await self.fs.symlink(ROOT_INO, b"s%d" % number, b"target", ME)
        self.names[b"/s%d" % number] = ("symlink", made.ino, b"target", ())

    async def change(self, number: int, operation: str) -> None:
        """Other bytes of the main file: small ones, or an object's worth."""
        handle = await self.main()
        old = self.expected.content[self.ino][-1]
        data = bytes([65 + number]) * (10 if number % 2 else 70_000)
        if operation == "truncate":
            size = 5 + number if number % 2 else 300_000
            await self.fs.setattr(self.ino, SetAttr(size=size))
            self.becomes(old[:size].ljust(size, b"\0"))
        elif operation == "append":
            end = await self.fs.open(self.ino, os.O_WRONLY | os.O_APPEND)
            await end.write(0, data)
            self.becomes(old + data)
            await end.close()
        else:
            await handle.write(20, data)
            self.becomes(old[:20].ljust(20, b"\0") + data + old[20 + len(data) :])

    async def name(self, number: int, operation: str) -> None:
        """Another name, no name, a new attribute of the main file."""
        if self.path is None:
            return
        parent = self.directory if self.path.startswith(b"/d/") else ROOT_INO
        name = self.path.rpartition(b"/")[2]
        entry = self.names[self.path]
        if operation == "link":
            await self.fs.link(self.ino, self.directory, b"l%d" % number)
            self.names[b"/d/l%d" % number] = entry
        elif operation == "rename":
            target = (ROOT_INO, b"/over") if number % 2 == 0 else (self.directory, b"/d/moved")
            await self.fs.rename(parent, name, target[0], target[1].rpartition(b"/")[2])
            if target[1] != self.path:
                self.names[target[1]] = self.names.pop(self.path)
                self.path = target[1]
        elif operation == "unlink":
            await self.fs.unlink(parent, name)
            del self.names[self.path]
            self.path = None
        else:
            await self.fs.setxattr(self.ino, b"user.x", b"%d" % number)
            for path, old in self.names.items():
                if old[:2] == entry[:2]:
                    self.names[path] = ("file", self.ino, b"", ((b"user.x", b"%d" % number),))

    async def end(self) -> None:
        """The client dies; another one finds what is there, and the volume is whole."""
        self.volume.end(next(iter(self.volume.epochs)))
        fs = await guarded_filesystem(self.volume, self.blocks.attach(), self.trip)
        last = self.moment()
        for path, (kind, ino, _, _) in last.names.items():
            if kind == "file":
                found = await resolve(fs, path)
                assert await read_all(fs, found) == last.bytes_of[ino]
        await fs.close()
        assert not self.volume.sustained
        assert self.volume.inodes_used == len(self.volume.nodes) - 1


async def resolve(fs: Filesystem, path: bytes) -> Ino:
    """The inode of a path."""
    ino = ROOT_INO
    for name in path.split(b"/")[1:]:
        ino = (await fs.lookup(ino, name)).ino
    return ino


async def read_all(fs: Filesystem, ino: Ino) -> bytes:
    """All bytes of a file."""
    handle = await fs.open(ino, os.O_RDONLY)
    data = await handle.read(0, handle.attr.size + 1)
    await handle.close()
    return data


async def play(steps: tuple[Step, ...]) -> int:
    """One sequence; the crashes that were looked at."""
    one = Play()
    await one.begin()
    try:
        for number, (operation, way) in enumerate(steps):
            await one.step(number, operation, way)
        crashes = len(one.moments)
        await one.end()
    except AssertionError as error:
        raise AssertionError(f"{steps}: {error}") from error
    return crashes


@pytest.mark.promise("D1")
@pytest.mark.promise("D2")
@pytest.mark.parametrize("length", [1, 2])
async def test_every_short_sequence(length: int) -> None:
    for steps in itertools.product(STEPS, repeat=length):
        await play(steps)


@pytest.mark.promise("D1")
@pytest.mark.promise("D2")
@pytest.mark.figure("CR-5")
async def test_sequences_of_three(figures: Figures) -> None:
    for number in figures(ci=500, long=2000):
        chosen = random.Random(number)
        await play(tuple(chosen.choice(STEPS) for _ in range(3)))
