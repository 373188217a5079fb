"""Many sessions at once: exactly one winner, no cycle, no orphan, no user-visible conflict."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from wrkfs import errors
from wrkfs.types import ROOT_INO, Caller, Moved, RenameFlags

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.postgres.store import PostgresMeta

ME = Caller(0, 0)


async def test_one_of_many_exclusive_creates_wins(pg_volume: InPostgres) -> None:
    sessions = [await pg_volume.session() for _ in range(4)]
    for n in range(20):
        outcomes = await asyncio.gather(
            *(
                session.create(ROOT_INO, b"%d" % n, 0o600, ME, exclusive=True)
                for session in sessions * 4
            ),
            return_exceptions=True,
        )
        assert sum(not isinstance(outcome, errors.Exists) for outcome in outcomes) == 1
    assert (await sessions[0].statfs()).inodes_used == 20


async def test_non_exclusive_creates_all_open_one_file(pg_volume: InPostgres) -> None:
    sessions = [await pg_volume.session() for _ in range(3)]
    for n in range(20):
        outcomes = await asyncio.gather(
            *(
                session.create(ROOT_INO, b"%d" % n, 0o600, ME, exclusive=False)
                for session in sessions * 4
            )
        )
        assert len({found.attr.ino for found, _ in outcomes}) == 1
        assert sum(new for _, new in outcomes) == 1


async def test_directories_moved_into_each_other_make_no_cycle(pg_volume: InPostgres) -> None:
    one, two = await pg_volume.session(), await pg_volume.session()
    for n in range(25):
        a = (await one.mkdir(ROOT_INO, b"a%d" % n, 0o755, ME)).ino
        b = (await one.mkdir(ROOT_INO, b"b%d" % n, 0o755, ME)).ino
        outcomes = await asyncio.gather(
            one.rename(ROOT_INO, b"a%d" % n, b, b"x"),
            two.rename(ROOT_INO, b"b%d" % n, a, b"x"),
            return_exceptions=True,
        )
        # The second finds its own goal below itself, or its own name gone.
        assert sum(isinstance(outcome, Moved) for outcome in outcomes) == 1
    assert await pg_volume.broken_invariants() == []


async def test_create_in_a_directory_being_removed(pg_volume: InPostgres) -> None:
    one, two = await pg_volume.session(), await pg_volume.session()
    for n in range(25):
        name = b"d%d" % n
        folder = (await one.mkdir(ROOT_INO, name, 0o755, ME)).ino
        made, removed = await asyncio.gather(
            one.mknod(folder, b"f", 0o600, 0, ME),
            two.rmdir(ROOT_INO, name),
            return_exceptions=True,
        )
        if isinstance(removed, int):
            assert isinstance(made, errors.NotFound)
        else:
            assert isinstance(removed, errors.NotEmpty)
            assert not isinstance(made, BaseException)
    assert await pg_volume.broken_invariants() == []


async def shuffle(meta: PostgresMeta, folders: list[bytes], seed: int) -> None:
    """Renames, links, removes and makes names in shared directories at random."""
    dice = random.Random(seed)
    for _ in range(60):
        parents = [(await meta.lookup(ROOT_INO, name)).ino for name in dice.choices(folders, k=2)]
        old, new = (b"%d" % dice.randrange(4) for _ in range(2))
        with suppress(
            errors.NotFound,
            errors.Exists,
            errors.NotEmpty,
            errors.IsDirectory,
            errors.NotDirectory,
            errors.InvalidArgument,
        ):
            match dice.randrange(6):
                case 0:
                    await meta.mknod(parents[0], old, 0o600, 0, ME)
                case 1:
                    await meta.mkdir(parents[0], old, 0o700, ME)
                case 2:
                    await meta.remove_tree(parents[0], old)
                case 3:
                    await meta.rename(
                        parents[0], old, parents[1], new, RenameFlags(dice.randrange(3))
                    )
                case 4:
                    found = await meta.lookup(parents[0], old)
                    await meta.rename(parents[1], new, found.ino, old)
                case _:
                    found = await meta.lookup(parents[0], old)
                    with suppress(errors.NotPermitted):
                        await meta.link(found.ino, parents[1], new)


async def test_sessions_working_in_the_same_directories(pg_volume: InPostgres) -> None:
    sessions = [await pg_volume.session() for _ in range(3)]
    folders = [b"x", b"y", b"z"]
    for name in folders:
        await sessions[0].mkdir(ROOT_INO, name, 0o755, ME)
    await asyncio.gather(
        *(shuffle(session, folders, seed) for seed, session in enumerate(sessions * 4))
    )
    assert await pg_volume.broken_invariants() == []


async def test_two_removals_of_one_tree(pg_volume: InPostgres) -> None:
    meta, other = await pg_volume.session(), await pg_volume.session()
    top = (await meta.mkdir(ROOT_INO, b"t", 0o755, ME)).ino
    for n in range(20):
        folder = (await meta.mkdir(top, b"%d" % n, 0o755, ME)).ino
        await asyncio.gather(*(meta.mknod(folder, b"%d" % k, 0o600, 0, ME) for k in range(20)))
    outcomes = await asyncio.gather(
        meta.remove_tree(ROOT_INO, b"t"),
        *(meta.remove_tree(top, b"%d" % n) for n in range(20)),
        other.remove_tree(ROOT_INO, b"t"),
        return_exceptions=True,
    )
    assert {type(outcome) for outcome in outcomes} <= {type(None), errors.NotFound}
    assert (await other.statfs()).inodes_used == 0
    assert await pg_volume.broken_invariants() == []


async def test_a_large_tree_goes_in_few_calls(pg_volume: InPostgres) -> None:
    meta = await pg_volume.session()
    top = (await meta.mkdir(ROOT_INO, b"t", 0o755, ME)).ino
    for n in range(50):
        folder = (await meta.mkdir(top, b"%d" % n, 0o755, ME)).ino
        await asyncio.gather(*(meta.mknod(folder, b"%d" % k, 0o600, 0, ME) for k in range(100)))
    before = meta._session.sequence
    await meta.remove_tree(ROOT_INO, b"t")
    assert meta._session.sequence - before <= 5
    assert (await meta.statfs()).inodes_used == 0
