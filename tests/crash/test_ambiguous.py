"""Connections that are cut around COMMIT: each change is applied once, and no caller notices."""

from __future__ import annotations

import os
import random
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import pytest
import pytest_asyncio

from tests.doubles.block_store import MemoryBlocks
from tests.doubles.meta_store import MemoryMeta
from tests.harness.servers.wire import Wire
from wrkfs.errors import WrkfsError
from wrkfs.fs import Filesystem
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, RenameFlags, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.harness.volumes.metastore import InPostgres
    from tests.plugins.figures import Figures
    from wrkfs.types import Ino

    Step: TypeAlias = Callable[[Filesystem], Awaitable[object]]

ME = Caller(0, 0)
NAMES = [b"a", b"b", b"c", b"d"]
STEPS = 8
"""Changes in a round."""
DEPTH = 4
"""Of the trees that are compared; renames make no deeper ones of four names at the top."""


@pytest_asyncio.fixture
async def wire(pg_volume: InPostgres, tmp_path: Path) -> AsyncIterator[Wire]:
    """Stands before the volume's database."""
    proxy = Wire(pg_volume.config.meta_dsn, tmp_path)
    await proxy.up()
    try:
        yield proxy
    finally:
        await proxy.down()


async def xattr(fs: Filesystem, name: bytes, value: bytes | None) -> None:
    """Sets or removes an attribute."""
    ino = (await fs.lookup(ROOT_INO, name)).ino
    if value is None:
        await fs.removexattr(ino, b"user.x")
    else:
        await fs.setxattr(ino, b"user.x", value)


async def link(fs: Filesystem, name: bytes, other: bytes) -> None:
    """Gives a file another name."""
    await fs.link((await fs.lookup(ROOT_INO, name)).ino, ROOT_INO, other)


async def clear(fs: Filesystem, name: bytes, start: int) -> None:
    """Makes a hole in a file; half of them grow the file."""
    handle = await fs.open((await fs.lookup(ROOT_INO, name)).ino, os.O_RDWR)
    try:
        await fs.ranges.allocate(handle, start, 50, clear=True, grow=start % 2 == 0)
    finally:
        await handle.close()


async def copy(fs: Filesystem, name: bytes, other: bytes) -> None:
    """Copies the bytes of a file into another one, which may be new."""
    source = await fs.open((await fs.lookup(ROOT_INO, name)).ino, os.O_RDWR)
    try:
        _, target = await fs.create(ROOT_INO, other, 0o600, os.O_RDWR, ME)
        try:
            await fs.ranges.copy(source, 0, target, 5000, 5000)
        finally:
            await target.close()
    finally:
        await source.close()


class Verbs:
    """Draws changes; every mutating call of a Filesystem is among them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def draw(self) -> tuple[str, Step]:
        """A change, by name; its arguments are drawn now, so that it is the same for both."""
        verb = self.chance.choice(sorted(self._verbs()))
        return verb, self._verbs()[verb]

    def _verbs(self) -> dict[str, Step]:
        name, other = self.chance.choice(NAMES), self.chance.choice(NAMES)
        data = self.chance.randbytes(self.chance.choice([1, 100, 3000]))
        mode = self.chance.choice([0o600, 0o644, 0o755])
        flags = self.chance.choice([RenameFlags.NONE, RenameFlags.NOREPLACE, RenameFlags.EXCHANGE])
        size = self.chance.randrange(200)

        async def ino(fs: Filesystem) -> Ino:
            return (await fs.lookup(ROOT_INO, name)).ino

        async def written(fs: Filesystem, how: int, *, exclusive: bool = False) -> None:
            flag = os.O_EXCL if exclusive else 0
            _, handle = await fs.create(ROOT_INO, name, mode, os.O_RDWR | how | flag, ME)
            try:
                await handle.write(0, data)
                if how == os.O_APPEND:
                    await handle.fsync()
                    await handle.write(0, b"!")
            finally:
                await handle.close()

        async def published(fs: Filesystem) -> bool:
            handle = await fs.create_unlinked(mode, ME)
            try:
                await handle.write(0, data)
                return await fs.publish(handle.ino, ROOT_INO, name)
            finally:
                await handle.close()

        async def changed(fs: Filesystem, changes: SetAttr) -> None:
            await fs.setattr(await ino(fs), changes)

        async def below(fs: Filesystem) -> None:
            await fs.mkdir(await ino(fs), other, mode, ME)

        return {
            "create": lambda fs: written(fs, 0, exclusive=True),
            "write": lambda fs: written(fs, 0),
            "append": lambda fs: written(fs, os.O_APPEND),
            "open and truncate": lambda fs: written(fs, os.O_TRUNC),
            "publish": published,
            "mkdir": lambda fs: fs.mkdir(ROOT_INO, name, mode, ME),
            "mkdir below": below,
            "mknod": lambda fs: fs.mknod(ROOT_INO, name, stat.S_IFIFO | mode, 0, ME),
            "symlink": lambda fs: fs.symlink(ROOT_INO, name, data[:100], ME),
            "link": lambda fs: link(fs, name, other),
            "unlink": lambda fs: fs.unlink(ROOT_INO, name),
            "rmdir": lambda fs: fs.rmdir(ROOT_INO, name),
            "remove_tree": lambda fs: fs.remove_tree(ROOT_INO, name),
            "rename": lambda fs: fs.rename(ROOT_INO, name, ROOT_INO, other, flags),
            "chmod": lambda fs: changed(fs, SetAttr(mode=mode)),
            "truncate": lambda fs: changed(fs, SetAttr(size=size)),
            "clear": lambda fs: clear(fs, name, size),
            "copy": lambda fs: copy(fs, name, other),
            "setxattr": lambda fs: xattr(fs, name, data[:50]),
            "removexattr": lambda fs: xattr(fs, name, None),
            "sync": lambda fs: fs.sync(),
        }


async def outcome(step: Step, fs: Filesystem) -> object:
    """What a change answers, as far as it does not differ between volumes; or how it fails."""
    try:
        found = await step(fs)
    except WrkfsError as error:
        return type(error).__name__
    return found if isinstance(found, bool) else None


async def picture(fs: Filesystem, ino: Ino = ROOT_INO, depth: int = 0) -> dict[bytes, object]:
    """Everything below a directory that programs can see, but numbers and times."""
    found: dict[bytes, object] = {}
    assert depth <= DEPTH
    for entry in await fs.readdir(ino, 0, 1000):
        attr = entry.attr
        shape = (attr.mode, attr.nlink, attr.size)
        content: object = None
        if attr.is_dir:
            content = await picture(fs, attr.ino, depth + 1)
        elif attr.is_symlink:
            content = await fs.readlink(attr.ino)
        elif attr.is_file:
            handle = await fs.open(attr.ino, os.O_RDONLY)
            content = await handle.read(0, 1 << 20)
            await handle.close()
        values = [
            (name, await fs.getxattr(attr.ino, name)) for name in await fs.listxattr(attr.ino)
        ]
        found[entry.name] = (shape, content, values)
    return found


@pytest.mark.promise("D1")
@pytest.mark.figure("CR-7")
@pytest.mark.timeout(240)
async def test_what_is_cut_around_commit_is_applied_once(
    pg_volume: InPostgres, wire: Wire, figures: Figures
) -> None:
    """The same changes on a store in memory, with no connection to cut, are the model."""
    real = PostgresMeta(replace(pg_volume.config, meta_dsn=wire.dsn))
    await real.start()
    fs = Filesystem(real, MemoryBlocks())
    memory = MemoryMeta()
    await memory.start()
    model = Filesystem(memory, MemoryBlocks())
    cuts = 0
    for number in figures(ci=50, long=500):
        verbs = Verbs(number)
        history = []
        for _ in range(STEPS):
            verb, step = verbs.draw()
            expected = await outcome(step, model)
            before = wire.cuts
            wire.cut(
                b"", verbs.chance.choice((0, 0, 1, 2)), verbs.chance.choice(("sent", "answered"))
            )
            history.append((verb, expected, await outcome(step, fs)))
            wire.cut(b"", 0, "sent")
            cuts += wire.cuts - before
            assert history[-1][1] == history[-1][2], (number, history)
        assert await picture(fs) == await picture(model), (number, history)
        for name in NAMES:
            for one in (fs, model):
                await outcome(lambda drive, name=name: drive.remove_tree(ROOT_INO, name), one)  # type: ignore[misc] # mypy sees no type for the default
    print(f"{cuts} connections cut")
    assert cuts > number
    await fs.close()
    await model.close()
