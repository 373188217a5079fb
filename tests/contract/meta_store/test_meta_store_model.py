"""Random operations give the same answers and the same volume in memory and in PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.loop import run
from tests.harness.volumes.extents import Objects
from tests.harness.volumes.metastore import InMemory, InPostgres, let_go
from wrkfs import errors
from wrkfs.types import ROOT_INO, Attr, Caller, Commit, Ino, RenameFlags, SetAttr, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore

Step: TypeAlias = "tuple[str, tuple[int, ...]]"
small = st.integers(0, 4)
PRELUDE: list[Step] = [
    ("mkdir", (1, 4, 1, 0, 0)),
    ("mkdir", (2, 4, 1, 0, 1)),
    ("create", (1, 3, 1, 0, 0)),
    ("create", (2, 3, 1, 0, 1)),
    ("hide", (0, 1, 0, 0, 0)),
    ("commit", (1, 1, 3, 0, 0)),
    ("commit", (2, 2, 4, 3, 1)),
]
"""So that random steps find something to work on."""
STEPS = st.lists(
    st.one_of(
        *(
            st.tuples(st.just(verb), st.tuples(*([small] * 5)))
            for verb in (
                "create",
                "create",
                "mkdir",
                "mkdir",
                "symlink",
                "link",
                "unlink",
                "rmdir",
                "remove_tree",
                "rename",
                "rename",
                "open",
                "release",
                "commit",
                "commit",
                "append",
                "resize",
                "chmod",
                "chown",
                "hide",
                "publish",
                "setxattr",
                "removexattr",
            )
        )
    ),
    min_size=10,
    max_size=50,
)


class Player:
    """Plays steps on two sessions of one volume and writes down what they answer.

    Inode numbers differ between stores, so inodes are named by the order in which they appeared.
    """

    def __init__(self, sessions: tuple[MetaStore, MetaStore]) -> None:
        self._sessions = sessions
        self._inodes: list[Ino] = [ROOT_INO]
        self._folders: list[Ino] = [ROOT_INO]
        self._files: list[Ino] = []
        self._hidden: list[Ino] = []
        self._objects = Objects()

    async def play(self, steps: list[Step]) -> list[object]:
        return [await self._answer(verb, args) for verb, args in steps]

    async def _answer(self, verb: str, args: tuple[int, ...]) -> object:
        meta = self._sessions[args[4] % 2]
        try:
            return await getattr(self, f"_{verb}")(meta, *args[:4])
        except errors.WrkfsError as error:
            return type(error).__name__

    @staticmethod
    def _pick(pool: list[Ino], index: int, strange: Ino) -> Ino:
        """One of a pool; a strange one for 0."""
        return pool[index % len(pool)] if index and pool else strange

    def _folder(self, index: int) -> Ino:
        """Mostly a directory."""
        return self._pick(self._folders, index, self._inodes[-1])

    def _file(self, index: int) -> Ino:
        """Mostly a file or another inode that is no directory."""
        return self._pick(self._files, index, self._folders[-1])

    def _seen(self, attr: Attr) -> tuple[object, ...]:
        """Attributes without what two stores cannot have in common."""
        if attr.ino not in self._inodes:
            self._inodes.append(attr.ino)
            (self._folders if attr.is_dir else self._files).append(attr.ino)
        alike = replace(attr, ino=Ino(0), atime_ns=0, mtime_ns=0, ctime_ns=0)
        return self._inodes.index(attr.ino), alike

    async def _create(self, meta: MetaStore, a: int, b: int, c: int, _: int) -> object:
        found, new = await meta.create(
            self._folder(a), b"%d" % b, 0o4711, Caller(c, c), exclusive=c == 0
        )
        return self._seen(found.attr), new

    async def _mkdir(self, meta: MetaStore, a: int, b: int, c: int, _: int) -> object:
        mode = 0o2755 if c == 4 else 0o755
        return self._seen(await meta.mkdir(self._folder(a), b"%d" % b, mode, Caller(c, c)))

    async def _symlink(self, meta: MetaStore, a: int, b: int, c: int, _: int) -> object:
        return self._seen(await meta.symlink(self._folder(a), b"%d" % b, b"t" * c, Caller(c, c)))

    async def _link(self, meta: MetaStore, a: int, b: int, c: int, _: int) -> object:
        return self._seen(await meta.link(self._file(c), self._folder(a), b"%d" % b))

    async def _unlink(self, meta: MetaStore, a: int, b: int, _c: int, _: int) -> None:
        await meta.unlink(self._folder(a), b"%d" % b)

    async def _rmdir(self, meta: MetaStore, a: int, b: int, _c: int, _: int) -> None:
        await meta.rmdir(self._folder(a), b"%d" % b)

    async def _remove_tree(self, meta: MetaStore, a: int, b: int, _c: int, _: int) -> None:
        await meta.remove_tree(self._folder(a), b"%d" % b)

    async def _rename(self, meta: MetaStore, a: int, b: int, c: int, d: int) -> None:
        flags = RenameFlags(b % 3)
        await meta.rename(self._folder(a), b"%d" % b, self._folder(c), b"%d" % d, flags)

    async def _open(self, meta: MetaStore, a: int, b: int, _c: int, _: int) -> object:
        found = await meta.open(self._file(a), truncate=b == 4)
        return self._seen(found.attr), self._objects.read(found)

    async def _release(self, meta: MetaStore, a: int, _b: int, _c: int, _: int) -> None:
        await let_go(meta, self._file(a))

    async def _commit(self, meta: MetaStore, a: int, b: int, c: int, d: int) -> object:
        return await self._put(meta, a, b, c, d, append=False)

    async def _append(self, meta: MetaStore, a: int, b: int, c: int, d: int) -> object:
        return await self._put(meta, a, b, c, d, append=True)

    async def _put(
        self, meta: MetaStore, a: int, b: int, c: int, d: int, *, append: bool
    ) -> object:
        make: Callable[..., object] = self._objects.stored if d > 2 else self._objects.inline
        extents = (self._objects.inline(b, b"x" * (c + 1)), make(3 * d, b"y" * (b + 1)))
        ino = self._file(a)
        commit = Commit(ino, extents, append=append, durable=False)  # type: ignore[arg-type]  # both make extents
        attr = await meta.commit(commit)
        return self._seen(attr), self._objects.read(await meta.file_map(ino))

    async def _resize(self, meta: MetaStore, a: int, b: int, c: int, _: int) -> object:
        size = b * c - (1 if c == 4 and b == 0 else 0)
        attr = await meta.setattr(self._file(a), SetAttr(size=size))
        return self._seen(attr), self._objects.read(await meta.file_map(self._file(a)))

    async def _chmod(self, meta: MetaStore, a: int, b: int, _c: int, _: int) -> object:
        return self._seen(
            await meta.setattr(self._inodes[-a % len(self._inodes)], SetAttr(mode=0o6710 + b))
        )

    async def _chown(self, meta: MetaStore, a: int, b: int, c: int, _: int) -> object:
        return self._seen(
            await meta.setattr(self._inodes[-a % len(self._inodes)], SetAttr(uid=b, gid=c or None))
        )

    async def _hide(self, meta: MetaStore, _a: int, b: int, _c: int, _: int) -> object:
        attr = (await meta.create_unlinked(0o600, Caller(b, b))).attr
        self._hidden.append(attr.ino)
        return self._seen(attr)

    async def _publish(self, meta: MetaStore, a: int, b: int, c: int, d: int) -> object:
        target = self._file(d)
        demanded = (target, (await meta.getattr(target)).version) if d > 2 else None
        return await meta.publish(
            self._pick(self._hidden, c, self._file(d)),
            self._folder(a),
            b"%d" % b,
            if_version=demanded,
            if_absent=d == 1,
        )

    async def _setxattr(self, meta: MetaStore, a: int, b: int, c: int, _: int) -> None:
        await meta.setxattr(
            self._inodes[-a % len(self._inodes)], b"u%d" % b, b"v" * c, XattrFlags(c % 3)
        )

    async def _removexattr(self, meta: MetaStore, a: int, b: int, _c: int, _: int) -> None:
        await meta.removexattr(self._inodes[-a % len(self._inodes)], b"u%d" % b)

    async def picture(self) -> object:
        """Everything that can be seen from outside."""
        meta = self._sessions[0]
        inodes: list[object] = []
        for ino in self._inodes:
            try:
                attr = await meta.getattr(ino)
            except errors.NotFound:
                inodes.append(None)
                continue
            content: object = None
            if attr.is_file:
                content = self._objects.read(await meta.file_map(ino))
            elif attr.is_symlink:
                content = await meta.readlink(ino)
            elif attr.is_dir:
                content = (
                    {e.name: self._seen(e.attr) for e in await meta.readdir(ino, 0, 100)},
                    self._inodes.index(await meta.parent(ino)),
                )
            xattrs = {name: await meta.getxattr(ino, name) for name in await meta.listxattr(ino)}
            inodes.append((self._seen(attr), content, xattrs))
        return inodes, await meta.statfs()


async def played(volume: MetaVolume, steps: list[Step]) -> list[object]:
    """Answers, picture, and what is left when one session has ended."""
    first, second = await volume.session(), await volume.session()
    player = Player((first, second))
    answers = await player.play(PRELUDE + steps)
    answers.append(await player.picture())
    answers.append(len(await volume.freed_slices()))
    await second.close()
    answers.append(await player.picture())
    await first.close()
    return answers


async def compare(dsn: str, steps: list[Step]) -> None:
    volume = InPostgres(dsn)
    await volume.make()
    try:
        answers = await played(volume, steps)
    finally:
        await volume.drop()
    assert answers == await played(InMemory(), steps)


@pytest.mark.timeout(300)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_both_stores_answer_alike(pg: str, steps: list[Step]) -> None:
    run(asyncio.wait_for(compare(pg, steps), 60))
