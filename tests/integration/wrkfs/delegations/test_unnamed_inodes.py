"""A change in the database of an inode that the cache does not know by name, and local changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wrkfs.types import ROOT_INO, Caller, Ino, SetAttr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.delegations.store import DelegatedMeta
    from wrkfs.meta.postgres.store import PostgresMeta

    BeforeAnswer: TypeAlias = Callable[[str, Callable[[], Awaitable[object]]], None]

ALICE = Caller(1000, 1000)
LATER = 4_000_000_000_000_000_000
"""An access time in the future, in nanoseconds."""


@pytest.fixture
def before_answer(store: PostgresMeta, monkeypatch: pytest.MonkeyPatch) -> BeforeAnswer:
    """Return a function that sets what happens between a call's end in the database and here."""

    def patch(name: str, step: Callable[[], Awaitable[object]]) -> None:
        call = getattr(store, name)

        async def slow(*args: object, **options: object) -> object:
            answer = await call(*args, **options)
            await step()
            return answer

        monkeypatch.setattr(store, name, slow)

    return patch


async def delegated(meta: DelegatedMeta, other: PostgresMeta) -> tuple[Ino, Ino]:
    """Return a directory without a lease, and a delegated directory `sub` in it."""
    home = await other.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    sub = await meta.mkdir(home.ino, b"sub", 0o755, ALICE)
    assert meta.table.directories[sub.ino].delegated
    assert meta.table.ino_of(home.ino, b"sub") is None
    return home.ino, sub.ino


async def row(volume: InPostgres, ino: Ino) -> tuple[int, int]:
    """Return the number of links and the parent of an inode in the database."""
    (found,) = await volume.rows("SELECT nlink, parent FROM inode WHERE ino = $1", ino)
    return found["nlink"], found["parent"]


async def test_an_access_time_does_not_bring_a_removed_directory_back(
    meta: DelegatedMeta,
    other: PostgresMeta,
    pg_volume: InPostgres,
    before_answer: BeforeAnswer,
) -> None:
    await pg_volume.keep_trash()
    home, sub = await delegated(meta, other)
    before_answer("rmdir", lambda: meta.touch({sub: LATER}))
    await meta.rmdir(home, b"sub")
    await meta.sync()
    assert await row(pg_volume, sub) == (0, home)


async def test_a_change_of_attributes_does_not_move_a_directory_back(
    meta: DelegatedMeta,
    other: PostgresMeta,
    pg_volume: InPostgres,
    before_answer: BeforeAnswer,
) -> None:
    home, sub = await delegated(meta, other)
    away = await other.mkdir(ROOT_INO, b"away", 0o755, ALICE)
    before_answer("rename", lambda: meta.setattr(sub, SetAttr(mode=0o700)))
    await meta.rename(home, b"sub", away.ino, b"sub")
    await meta.sync()
    assert await row(pg_volume, sub) == (2, away.ino)
    assert (await other.getattr(sub)).mode & 0o777 == 0o700


async def test_an_access_time_does_not_bring_a_replaced_directory_back(
    meta: DelegatedMeta,
    other: PostgresMeta,
    pg_volume: InPostgres,
    before_answer: BeforeAnswer,
) -> None:
    await pg_volume.keep_trash()
    home, sub = await delegated(meta, other)
    await other.mkdir(home, b"new", 0o755, ALICE)
    before_answer("rename", lambda: meta.touch({sub: LATER}))
    await meta.rename(home, b"new", home, b"sub")
    await meta.sync()
    assert await row(pg_volume, sub) == (0, home)


async def test_a_change_of_attributes_does_not_bring_a_removed_file_back(
    meta: DelegatedMeta,
    other: PostgresMeta,
    pg_volume: InPostgres,
    before_answer: BeforeAnswer,
) -> None:
    await pg_volume.keep_trash()
    home = await other.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    file, _ = await other.create(home.ino, b"f", 0o644, ALICE, exclusive=True)
    await meta.getattr(home.ino)
    await meta.getattr(file.attr.ino)
    await meta.mkdir(home.ino, b"sub", 0o755, ALICE)
    assert meta.table.directories[home.ino].delegated
    assert meta.table.ino_of(home.ino, b"f") is None

    before_answer("unlink", lambda: meta.touch({file.attr.ino: LATER}))
    await meta.unlink(home.ino, b"f")
    await meta.sync()
    assert await row(pg_volume, file.attr.ino) == (0, home.ino)


async def test_nothing_below_a_tree_that_is_being_removed_changes(
    meta: DelegatedMeta,
    other: PostgresMeta,
    pg_volume: InPostgres,
    before_answer: BeforeAnswer,
) -> None:
    home, sub = await delegated(meta, other)
    below = await meta.mkdir(sub, b"below", 0o755, ALICE)
    before_answer("remove_tree", lambda: meta.touch({below.ino: LATER}))
    await meta.remove_tree(home, b"sub")
    await meta.sync()
    assert await pg_volume.rows("SELECT 1 FROM inode WHERE ino = $1", below.ino) == []


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_published_file_ends_what_is_cached_of_the_one_before(
    meta: DelegatedMeta, other: PostgresMeta, pg_volume: InPostgres, is_named: bool
) -> None:
    home = await other.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    file, _ = await other.create(home.ino, b"f", 0o644, ALICE, exclusive=True)
    await other.release(file.attr.ino)
    await meta.getattr(home.ino)
    await meta.getattr(file.attr.ino)
    if is_named:
        await meta.lookup(home.ino, b"f")
    await meta.mkdir(home.ino, b"sub", 0o755, ALICE)
    assert meta.table.directories[home.ino].delegated

    new = await meta.create_unlinked(0o600, ALICE)
    assert not await meta.publish(new.attr.ino, home.ino, b"f")
    await meta.touch({file.attr.ino: LATER})
    await meta.sync()
    assert (await other.lookup(home.ino, b"f")).ino == new.attr.ino
    await meta.release(new.attr.ino)
