"""Random work on files, from two sessions, against a bytearray."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wrkfs.drive import Drive, content, create
from wrkfs.layout import BLOCK_SIZE, INLINE_MAX
from wrkfs.types import SetAttr

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle

# Places around the borders where the representation changes, and anywhere.
OFFSETS = st.one_of(
    st.integers(0, 300),
    st.integers(INLINE_MAX - 50, INLINE_MAX + 50),
    st.integers(BLOCK_SIZE - 50, BLOCK_SIZE + 50),
)
SIZES = st.one_of(st.integers(0, 200), st.integers(INLINE_MAX - 5, INLINE_MAX + 5))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), OFFSETS, SIZES),
        st.tuples(st.just("append"), st.just(0), SIZES),
        st.tuples(st.just("truncate"), OFFSETS, st.just(0)),
        st.tuples(st.just("read"), OFFSETS, SIZES),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("stat"), st.just(0), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


class OneFile:
    """One file and its expected bytes."""

    def __init__(self, handle: FileHandle, appender: FileHandle) -> None:
        self.handle = handle
        self.appender = appender
        self.model = bytearray()
        self.counter = 0

    def fresh(self, size: int) -> bytes:
        """Bytes that differ from write to write."""
        self.counter += 1
        return (b"%08d" % self.counter * (size // 8 + 1))[:size]

    async def step(self, fs: Filesystem, verb: str, offset: int, size: int) -> None:
        """Do one step on both."""
        if verb == "write":
            data = self.fresh(size)
            await self.handle.write(offset, data)
            if data:
                self.model.extend(bytes(max(0, offset - len(self.model))))
                self.model[offset : offset + size] = data
        elif verb == "append":
            data = self.fresh(size)
            await self.appender.write(0, data)
            self.model += data
        elif verb == "truncate":
            await fs.setattr(self.handle.ino, SetAttr(size=offset))
            self.model.extend(bytes(max(0, offset - len(self.model))))
            del self.model[offset:]
        elif verb == "read":
            assert await self.handle.read(offset, size) == self.model[offset : offset + size]
        elif verb == "flush":
            await self.handle.flush()
        elif verb == "stat":
            assert (await fs.getattr(self.handle.ino)).size == len(self.model)
        else:
            ino = self.handle.ino
            await self.handle.close()
            self.handle = await fs.open(ino, os.O_RDWR)


async def one_session(steps: list[tuple[str, int, int]]) -> None:
    drive = Drive()
    fs = await drive.mount()
    handle = await create(fs)
    file = OneFile(handle, await fs.open(handle.ino, os.O_WRONLY | os.O_APPEND))
    for verb, offset, size in steps:
        await file.step(fs, verb, offset, size)
    assert await content(fs) == file.model
    await drive.close()
    after = Drive()
    after.volume, after.blocks = drive.volume, drive.blocks
    assert await content(await after.mount(drive.blocks.attach())) == file.model
    await after.close()


async def two_sessions(steps: list[tuple[bool, str, int, int]]) -> None:
    """The sessions take turns, and flush at the end of each, as programs that share a file do."""
    drive = Drive()
    mounts = [await drive.mount(), await drive.mount()]
    handle = await create(mounts[0])
    files = [
        OneFile(
            await fs.open(handle.ino, os.O_RDWR),
            await fs.open(handle.ino, os.O_WRONLY | os.O_APPEND),
        )
        for fs in mounts
    ]
    files[1].model = files[0].model
    last = 0
    for second, verb, offset, size in steps:
        if last != second:
            await files[last].handle.flush()
            last = int(second)
            files[last].counter += 1000
        await files[last].step(mounts[last], verb, offset, size)
    await files[last].handle.flush()
    for fs in mounts:
        assert await content(fs) == files[0].model
    await drive.close()


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_one_session_reads_what_it_wrote(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(one_session(steps))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.booleans(), STEPS.map(lambda steps: steps[:1])), max_size=20))
def test_two_sessions_see_each_other(
    turns: list[tuple[bool, list[tuple[str, int, int]]]],
) -> None:
    asyncio.run(two_sessions([(who, *step) for who, steps in turns for step in steps]))
