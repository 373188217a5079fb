"""Answers from the cache, also after own changes, and calls that need the store."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
import pytest_asyncio

from tests.harness.wait import until
from tests.unit.wrkfs.meta.lessor import Lessor
from wrkfs.errors import NotFound, Unavailable
from wrkfs.meta.leases.store import LeasedMeta, filled
from wrkfs.types import (
    ROOT_INO,
    Attr,
    Caller,
    Commit,
    Extent,
    FileMap,
    Ino,
    RenameFlags,
    SetAttr,
    SliceId,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from wrkfs.meta.interface.leases import LeaseStore
    from wrkfs.types import Dentry

ME = Caller(1000, 1000)


class Asked:
    """Records each call of a store."""

    def __init__(self, inner: Lessor) -> None:
        self._inner = inner
        self.calls: list[str] = []
        self.gate: asyncio.Event | None = None
        """Calls are answered after it is set."""

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def ask(*args: object, **named: object) -> object:
            self.calls.append(name)
            answer = await found(*args, **named)
            if self.gate is not None:
                await self.gate.wait()
            return answer

        return ask

    def taken(self) -> list[str]:
        """Return the calls since the last call of this method."""
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def lessor() -> Lessor:
    """The inner store."""
    return Lessor()


@pytest.fixture
def asked(lessor: Lessor) -> Asked:
    """The recorded calls."""
    return Asked(lessor)


@pytest_asyncio.fixture
async def meta(asked: Asked) -> AsyncIterator[LeasedMeta]:
    """A store with a cache."""
    made = LeasedMeta(cast("LeaseStore", asked))
    await made.start()
    yield made
    await made.close()


async def files(meta: LeasedMeta, directory: Ino, *names: bytes) -> list[Ino]:
    """Create files and close them."""
    found = []
    for name in names:
        made, _ = await meta.create(directory, name, 0o644, ME, exclusive=True)
        await meta.release(made.attr.ino)
        found.append(made.attr.ino)
    return found


async def listed(meta: LeasedMeta | Lessor, directory: Ino, limit: int) -> list[Dentry]:
    """Return all entries, in batches."""
    found: list[Dentry] = []
    while part := await meta.readdir(directory, found[-1].cookie if found else 0, limit):
        found += part
    return found


async def whole(meta: LeasedMeta, *names: bytes) -> tuple[Ino, list[Ino]]:
    """Create a directory with files, and cache all of it."""
    home = (await meta.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    return home, await files(meta, home, *names)


def names(entries: Sequence[Dentry]) -> list[bytes]:
    return [one.name for one in entries]


async def test_a_directory_that_was_made_here_is_known(meta: LeasedMeta, asked: Asked) -> None:
    home, _ = await whole(meta, b"a", b"b")
    asked.taken()
    with pytest.raises(NotFound):
        await meta.lookup(home, b"absent")
    assert (await meta.lookup(home, b"a")).is_file
    assert names(await listed(meta, home, 1)) == [b"a", b"b"]
    assert asked.taken() == []


async def test_what_was_moved_or_removed_is_known(
    meta: LeasedMeta, lessor: Lessor, asked: Asked
) -> None:
    home, (first, _, third) = await whole(meta, b"a", b"b", b"c")
    sub = (await meta.mkdir(home, b"sub", 0o755, ME)).ino
    await meta.getattr(home)
    asked.taken()
    await meta.rename(home, b"a", home, b"z")
    await meta.rename(home, b"c", home, b"b")
    await meta.rmdir(home, b"sub")
    assert asked.taken() == ["rename", "rename", "rmdir"]
    assert (await meta.lookup(home, b"z")).ino == first
    assert (await meta.lookup(home, b"b")).ino == third
    for gone in (b"a", b"c", b"sub"):
        with pytest.raises(NotFound):
            await meta.lookup(home, gone)
    kept = await listed(meta, home, 1)
    own = await meta.getattr(home)
    assert asked.taken() == []
    assert own == (await lessor.stat(home))[0]
    assert [(one.cookie, one.name, one.attr.ino) for one in kept] == [
        (one.cookie, one.name, one.attr.ino) for one in await listed(lessor, home, 1)
    ]
    assert not meta.table.holds(sub)
    # The replaced file must not hide the right number of links.
    assert own.nlink == 2


async def test_an_exchange_leaves_the_names_to_the_store(
    meta: LeasedMeta, lessor: Lessor, asked: Asked
) -> None:
    home, (first, second) = await whole(meta, b"a", b"b")
    await meta.rename(home, b"a", home, b"b", RenameFlags.EXCHANGE)
    asked.taken()
    assert (await meta.lookup(home, b"a")).ino == second
    assert (await meta.lookup(home, b"b")).ino == first
    # The second look-up also reads the whole directory.
    assert asked.taken() == ["find", "find", "read_tree"]
    assert (await meta.getattr(home)) == (await lessor.stat(home))[0]


async def test_changes_at_once_leave_the_times_to_the_store(
    meta: LeasedMeta, lessor: Lessor, asked: Asked
) -> None:
    home, _ = await whole(meta, b"a", b"b", b"c")
    await meta.getattr(home)
    asked.gate = asyncio.Event()
    both = [
        asyncio.create_task(meta.unlink(home, b"a")),
        asyncio.create_task(meta.rename(home, b"b", home, b"d")),
    ]
    await until(lambda: asked.calls[-2:] == ["unlink", "rename"])
    asked.gate.set()
    await asyncio.gather(*both)
    asked.taken()
    assert await meta.getattr(home) == (await lessor.stat(home))[0]
    assert asked.taken() == ["stat"]
    assert names(await listed(meta, home, 10)) == [b"c", b"d"]


async def test_a_repeated_call_does_not_tell_the_directorys_times(
    meta: LeasedMeta, lessor: Lessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has the current attributes: another session has changed the new inode."""
    home, _ = await whole(meta)
    await meta.getattr(home)
    make = lessor.mkdir

    async def repeated(parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        made = await make(parent, name, mode, caller)
        return replace(made, ctime_ns=made.ctime_ns + 10**9, mtime_ns=made.mtime_ns + 10**9)

    monkeypatch.setattr(lessor, "mkdir", repeated)
    await meta.mkdir(home, b"sub", 0o755, ME)
    assert await meta.getattr(home) == (await lessor.stat(home))[0]


async def test_a_listing_goes_on_after_a_name_whose_place_is_not_known(
    meta: LeasedMeta, lessor: Lessor
) -> None:
    home, (first, *_) = await whole(meta, b"a", b"b", b"c")
    begun = await meta.readdir(home, 0, 1)
    await meta.link(first, home, b"link")
    rest = await meta.readdir(home, begun[0].cookie, 10)
    assert names(rest) == [b"b", b"c", b"link"]
    assert names(await listed(meta, home, 2)) == names(await listed(lessor, home, 2))


async def test_a_listing_goes_on_across_renames_as_the_store_says(
    meta: LeasedMeta, lessor: Lessor, asked: Asked
) -> None:
    home, _ = await whole(meta, b"a", b"b", b"c", b"d")
    begun = await meta.readdir(home, 0, 2)
    await meta.rename(home, b"a", home, b"z")
    await meta.rename(home, b"d", home, b"b")
    await meta.rename(home, b"c", home, b"y")
    asked.taken()
    rest = await meta.readdir(home, begun[-1].cookie, 10)
    assert names(rest) == names(await lessor.readdir(home, begun[-1].cookie, 10)) == [b"z", b"y"]
    assert await meta.readdir(home, rest[-1].cookie, 10) == []
    assert asked.taken() == []


async def test_behind_the_last_entry_nothing_is_asked(meta: LeasedMeta, asked: Asked) -> None:
    made = await files(meta, ROOT_INO, *(b"f%d" % number for number in range(5)))
    found = await meta.readdir(ROOT_INO, 0, 100)
    assert [one.attr.ino for one in found] == made
    asked.taken()
    assert await meta.readdir(ROOT_INO, found[-1].cookie, 100) == []
    assert asked.taken() == []
    empty = (await meta.mkdir(ROOT_INO, b"empty", 0o755, ME)).ino
    asked.taken()
    assert await meta.readdir(empty, 0, 100) == []
    assert asked.taken() == []


async def test_many_questions_read_ahead(lessor: Lessor, asked: Asked, meta: LeasedMeta) -> None:
    count = 1000
    others = Lessor(lessor.volume)
    await others.start()
    for number in range(count):
        await others.create(ROOT_INO, b"f%d" % number, 0o644, ME, exclusive=True)
    asked.taken()
    reads, questions = [], 0
    for number in range(count):
        await meta.lookup(ROOT_INO, b"f%d" % number)
        calls = asked.taken()
        questions += calls.count("find")
        if "entries" in calls or "read_tree" in calls:
            reads.append(number)
    # After 2, 4, 8 and 16 questions the next 256 entries.
    assert reads == [1, 256 + 1, 512 + 3, 768 + 7]
    assert questions == 16
    await others.close()


async def test_reading_ahead_that_fails_is_no_failure(
    lessor: Lessor, meta: LeasedMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise Unavailable

    await lessor.create(ROOT_INO, b"file", 0o644, ME, exclusive=True)
    monkeypatch.setattr(lessor, "entries", fail)
    monkeypatch.setattr(lessor, "read_tree", fail)
    for number in range(20):
        with pytest.raises(NotFound):
            await meta.lookup(ROOT_INO, b"absent%d" % number)
    assert (await meta.lookup(ROOT_INO, b"file")).is_file


async def test_what_is_replaced_is_relied_on_by_nobody(
    meta: LeasedMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be open: leases no longer cover what other sessions write to it."""
    home, (_, second) = await whole(meta, b"a", b"b")
    assert meta.table.attr_validity(await meta.getattr(second)) > 0
    told: set[Ino] = set()

    async def drop(_: Sequence[Ino], inos: set[Ino]) -> None:
        told.update(inos)

    monkeypatch.setattr(meta.table, "on_drop", drop)
    await meta.rename(home, b"a", home, b"b")
    assert second in told


@pytest.mark.parametrize("known", [False, True])
async def test_what_was_in_a_removed_tree_is_relied_on_by_nobody(
    meta: LeasedMeta, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    _, (file,) = await whole(meta, b"a")
    if known:
        await meta.lookup(ROOT_INO, b"home")
    assert meta.table.attr_validity(await meta.getattr(file)) > 0
    told: set[Ino] = set()

    async def drop(_: Sequence[Ino], inos: set[Ino]) -> None:
        told.update(inos)

    monkeypatch.setattr(meta.table, "on_drop", drop)
    await meta.remove_tree(ROOT_INO, b"home")
    assert file in told


async def test_a_directory_removed_under_an_unknown_name_is_not_kept(
    meta: LeasedMeta, lessor: Lessor
) -> None:
    """Its lease ended with it, and it may be restored from the trash."""
    home = (await meta.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    assert meta.table.holds(home)
    lessor.recall(ROOT_INO)
    await meta.leases._leaving[ROOT_INO]
    await meta.rmdir(ROOT_INO, b"home")
    assert not meta.table.holds(home)


async def test_a_lease_that_is_taken_while_its_directory_is_removed_is_not_used(
    meta: LeasedMeta, lessor: Lessor, asked: Asked
) -> None:
    home = (await lessor.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    await meta.lookup(ROOT_INO, b"home")
    gate = asked.gate = asyncio.Event()
    taking = asyncio.create_task(meta.lookup(home, b"absent"))
    await until(lambda: asked.calls[-1] == "take_lease")
    asked.gate = None
    await meta.rmdir(ROOT_INO, b"home")
    gate.set()
    with pytest.raises(NotFound):
        await taking
    assert not meta.table.holds(home)


# -- times --


async def test_a_change_to_what_is_there_is_sent_because_the_ctime_moves(
    meta: LeasedMeta, asked: Asked
) -> None:
    _, (file,) = await whole(meta, b"a")
    first = await meta.setattr(file, SetAttr(mode=0o600, uid=ME.uid))
    asked.taken()
    again = await meta.setattr(file, SetAttr(mode=0o600, uid=ME.uid))
    assert asked.taken() == ["setattr"]
    assert again.ctime_ns > first.ctime_ns


# -- the first bytes of a file --


async def test_the_first_bytes_are_read_without_a_question(
    meta: LeasedMeta, lessor: Lessor, asked: Asked
) -> None:
    _, (file,) = await whole(meta, b"a")
    extent = Extent(3, SliceId(1), 5, b"", b"bytes")
    await meta.commit(Commit(file, (extent,)))
    asked.taken()
    found = await meta.open(file)
    assert asked.taken() == []
    assert found == await lessor.file_map(file)
    # A second commit may be merged with the first, so the store is asked.
    await meta.commit(Commit(file, (Extent(8, SliceId(2), 4, b"", b"more"),)))
    asked.taken()
    assert await meta.file_map(file) == await lessor.file_map(file)
    assert asked.taken() == ["file_map"]


async def test_bytes_appended_to_a_hole_stand_behind_it(meta: LeasedMeta, lessor: Lessor) -> None:
    _, (file,) = await whole(meta, b"a")
    await meta.setattr(file, SetAttr(size=1000))
    await meta.file_map(file)
    await meta.commit(Commit(file, (Extent(0, SliceId(1), 5, b"", b"bytes"),), append=True))
    found = await meta.file_map(file)
    assert found == await lessor.file_map(file)
    assert [ref.pos for ref in found.refs] == [1000]


async def test_a_map_is_made_of_one_first_extent_only(meta: LeasedMeta, lessor: Lessor) -> None:
    _, (file,) = await whole(meta, b"a")
    before = await lessor.file_map(file)
    one = Extent(0, SliceId(1), 1, b"", b"x")
    after = replace(before.attr, version=before.attr.version + 1, size=1)
    made = filled(before, Commit(file, (one,)), after)
    assert made is not None
    assert made.attr is after
    assert filled(made, Commit(file, (one,)), replace(after, version=after.version + 1)) is None
    two = (one, replace(one, pos=9, slice_id=SliceId(2)))
    assert filled(before, Commit(file, two), after) is None
    later = replace(after, version=after.version + 1)
    assert filled(FileMap(before.attr, ()), Commit(file, (one,)), later) is None
