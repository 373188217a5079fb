"""What own changes tell is kept, costs no question, and is what every other session sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from wrkfs.errors import NotFound
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, Commit, Extent, SetAttr, SliceId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.postgres.links import Rows
    from wrkfs.types import Attr, Dentry, Ino

ME = Caller(1000, 1000)
BACKGROUND = {"heartbeat", "reap", "release", "survey", "reserve"}
"""Not asked by who waits for an answer."""


@pytest_asyncio.fixture
async def other(pg_volume: InPostgres) -> PostgresMeta:
    """A session that keeps nothing and takes no leases."""
    return await pg_volume.session()


@pytest.fixture
def store(pg_volume: InPostgres) -> PostgresMeta:
    """What is below the one that keeps."""
    return PostgresMeta(pg_volume.config, leases=True)


@pytest_asyncio.fixture
async def meta(store: PostgresMeta) -> AsyncIterator[LeasedMeta]:
    """One that keeps."""
    made = LeasedMeta(store)
    await made.start()
    yield made
    await made.close()


@pytest.fixture
def questions(store: PostgresMeta, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the session that keeps: statements by name."""
    found: list[str] = []
    tell = store._links.tell

    async def told(
        name: str, args: tuple[object, ...], deadline: float | None = None
    ) -> tuple[Rows, bool]:
        if name not in BACKGROUND:
            found.append(name)
        return await tell(name, args, deadline)

    monkeypatch.setattr(store._links, "tell", told)
    return found


async def listed(meta: LeasedMeta | PostgresMeta, home: Ino, limit: int) -> list[Dentry]:
    """All entries, in parts."""
    found: list[Dentry] = []
    while part := await meta.readdir(home, found[-1].cookie if found else 0, limit):
        found += part
    return found


async def named(meta: LeasedMeta | PostgresMeta, home: Ino, name: bytes) -> Attr | None:
    """What a name stands for."""
    try:
        return await meta.lookup(home, name)
    except NotFound:
        return None


NAMES = (b"a", b"b", b"c", b"d", b"s", b"t", b"u")
Step = tuple[str, "Callable[[LeasedMeta, Ino], Awaitable[object]]"]
STEPS: tuple[Step, ...] = (
    ("create", lambda meta, home: meta.create(home, b"a", 0o644, ME, exclusive=True)),
    ("create", lambda meta, home: meta.create(home, b"b", 0o644, ME, exclusive=False)),
    ("make", lambda meta, home: meta.mkdir(home, b"s", 0o755, ME)),
    ("make", lambda meta, home: meta.symlink(home, b"c", b"target", ME)),
    ("commit", lambda meta, home: write(meta, home, b"a")),
    ("setattr", lambda meta, home: chmod(meta, home, b"a")),
    ("rename", lambda meta, home: meta.rename(home, b"a", home, b"d")),
    ("rename", lambda meta, home: meta.rename(home, b"b", home, b"d")),
    ("remove", lambda meta, home: meta.unlink(home, b"c")),
    ("make", lambda meta, home: meta.mkdir(home, b"u", 0o755, ME)),
    ("remove", lambda meta, home: meta.rmdir(home, b"s")),
    ("setattr", lambda meta, home: meta.setattr(home, SetAttr(mode=0o700))),
    ("remove", lambda meta, home: meta.unlink(home, b"d")),
)


async def write(meta: LeasedMeta, home: Ino, name: bytes) -> None:
    """First bytes."""
    ino = (await meta.lookup(home, name)).ino
    await meta.commit(Commit(ino, (Extent(0, SliceId(ino), 5, b"", b"bytes"),)))


async def chmod(meta: LeasedMeta, home: Ino, name: bytes) -> None:
    """Another mode, and the same once more."""
    ino = (await meta.lookup(home, name)).ino
    first = await meta.setattr(ino, SetAttr(mode=0o600))
    assert first.mode & 0o777 == 0o600


@pytest.mark.promise("V1")
@pytest.mark.parametrize("limit", [1, 100])
async def test_after_own_changes_nothing_is_asked(
    meta: LeasedMeta, other: PostgresMeta, questions: list[str], limit: int
) -> None:
    home = (await meta.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    for wanted, step in STEPS:
        questions.clear()
        await step(meta, home)
        assert questions == [wanted]
        questions.clear()
        own = await meta.getattr(home)
        found = {name: await named(meta, home, name) for name in NAMES}
        entries = await listed(meta, home, limit)
        assert questions == []
        assert own == await other.getattr(home)
        assert found == {name: await named(other, home, name) for name in NAMES}
        assert entries == await listed(other, home, limit)


async def test_the_first_bytes_are_read_without_a_question(
    meta: LeasedMeta, other: PostgresMeta, questions: list[str]
) -> None:
    home = (await meta.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    made, _ = await meta.create(home, b"a", 0o644, ME, exclusive=True)
    ino = made.attr.ino
    await write(meta, home, b"a")
    questions.clear()
    found = await meta.open(ino)
    assert await meta.file_map(ino) == found
    assert questions == []
    assert found == await other.file_map(ino)
    # Appended behind a hole.
    gap, _ = await meta.create(home, b"gap", 0o644, ME, exclusive=True)
    await meta.setattr(gap.attr.ino, SetAttr(size=100))
    await meta.file_map(gap.attr.ino)
    extent = Extent(0, SliceId(10**6), 5, b"", b"bytes")
    await meta.commit(Commit(gap.attr.ino, (extent,), append=True))
    assert await meta.file_map(gap.attr.ino) == await other.file_map(gap.attr.ino)


@pytest.mark.promise("V1")
async def test_a_listing_that_goes_on_across_renames_is_the_databases(
    meta: LeasedMeta, other: PostgresMeta, questions: list[str]
) -> None:
    home = (await meta.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    for name in (b"a", b"b", b"c", b"d"):
        await meta.mknod(home, name, 0o644, 0, ME)
    begun = await meta.readdir(home, 0, 2)
    await meta.rename(home, b"a", home, b"z")
    await meta.rename(home, b"d", home, b"b")
    await meta.rename(home, b"c", home, b"y")
    questions.clear()
    rest = await meta.readdir(home, begun[-1].cookie, 10)
    assert [one.name for one in rest] == [b"z", b"y"]
    assert questions == []
    assert rest == await other.readdir(home, begun[-1].cookie, 10)


@pytest.mark.promise("V1")
async def test_a_name_whose_place_is_not_known_is_listed(
    meta: LeasedMeta, other: PostgresMeta
) -> None:
    home = (await meta.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    for name in (b"a", b"b"):
        await meta.mknod(home, name, 0o644, 0, ME)
    begun = await meta.readdir(home, 0, 1)
    await meta.link(begun[0].attr.ino, home, b"link")
    assert await meta.readdir(home, begun[0].cookie, 10) == await other.readdir(
        home, begun[0].cookie, 10
    )


@pytest.mark.promise("V1")
async def test_a_directory_that_comes_back_is_asked_for(
    pg_volume: InPostgres, meta: LeasedMeta, other: PostgresMeta
) -> None:
    """The lease went when the directory was removed, also where its name was not known."""
    await pg_volume.keep_trash()
    home = (await meta.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    made, _ = await meta.create(home, b"a", 0o644, ME, exclusive=True)
    await meta.commit(Commit(made.attr.ino, (Extent(0, SliceId(1), 1, b"", b"x"),)))
    await meta.release(made.attr.ino)
    await meta.unlink(home, b"a")
    # Somebody else works above it.
    await meta.getattr(ROOT_INO)
    await other.mkdir(ROOT_INO, b"elsewhere", 0o755, ME)
    assert meta.table.holds(home)
    assert not meta.table.holds(ROOT_INO)
    await meta.rmdir(ROOT_INO, b"home")
    await other.restore(home, ROOT_INO, b"home")
    assert await named(meta, home, b"new") is None
    await other.mkdir(home, b"new", 0o755, ME)
    assert await named(meta, home, b"new") == await other.lookup(home, b"new")
