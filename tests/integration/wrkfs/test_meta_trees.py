"""`read_tree` in PostgreSQL: answers, bounds, leases, and the calls that a walk costs."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from wrkfs.errors import Corrupt
from wrkfs.layout import KIB
from wrkfs.meta.delegations.store import DelegatedMeta
from wrkfs.meta.interface.trees import TreeRequest
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, Commit, Extent, Ino, SetAttr, SliceId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.interface.trees import Listing
    from wrkfs.meta.postgres.links import Rows

ME = Caller(1000, 1000)
BACKGROUND = {"heartbeat", "reap", "release", "survey", "reserve", "sustain_all", "touch"}
"""Calls for which no reader waits."""


@pytest_asyncio.fixture
async def maker(pg_volume: InPostgres) -> PostgresMeta:
    """A session that caches nothing and takes no leases."""
    return await pg_volume.session()


@pytest_asyncio.fixture
async def holder(pg_volume: InPostgres) -> AsyncIterator[PostgresMeta]:
    """A session that may take leases."""
    meta = PostgresMeta(pg_volume.config, leases=True)
    await meta.start()
    try:
        yield meta
    finally:
        await meta.close()


async def write(maker: PostgresMeta, home: Ino, name: bytes, *pieces: bytes, step: int = 0) -> Ino:
    """Create a file of inline pieces: one after the other, or every `step` bytes."""
    found, _ = await maker.create(home, name, 0o644, ME, exclusive=True)
    ino = found.attr.ino
    for number, piece in enumerate(pieces):
        slice_id = await maker.reserve_slices(1)
        extent = Extent(number * step, SliceId(slice_id), len(piece), b"", piece)
        await maker.commit(Commit(ino, (extent,), append=not step, durable=False))
    await maker.release(ino)
    return ino


async def directory(maker: PostgresMeta, parent: Ino, name: bytes, files: int = 0) -> Ino:
    """Create a directory with small files."""
    home = (await maker.mkdir(parent, name, 0o755, ME)).ino
    for number in range(files):
        await write(maker, home, b"f%d" % number, b"%d" % number)
    return home


def request(*directories: Ino, entries: int = 1000, content: int = 1 << 20) -> TreeRequest:
    """Return a request without leases."""
    return TreeRequest(directories, entries, content)


async def leases(volume: InPostgres, session: int) -> set[Ino]:
    """Return the directories that a session has leased."""
    found = await volume.rows("SELECT ino FROM lease WHERE session_id = $1", session)
    return {row[0] for row in found}


def names(listing: Listing) -> list[bytes]:
    return [entry.dentry.name for entry in listing.entries]


async def test_the_answer_is_that_of_single_calls(maker: PostgresMeta) -> None:
    home = await directory(maker, ROOT_INO, b"home", 3)
    empty = await directory(maker, home, b"empty")
    await maker.symlink(home, b"link", b"f0", ME)
    await write(maker, home, b"nothing")
    await write(maker, home, b"two", bytes(40 * KIB), bytes(20 * KIB))
    hole = await write(maker, home, b"hole")
    await maker.setattr(hole, SetAttr(size=1000))
    large = await write(maker, home, b"object")
    slice_id = await maker.reserve_slices(1)
    await maker.commit(Commit(large, (Extent(0, slice_id, 200 * KIB, bytes(8), None),)))
    answer = await maker.read_tree(request(empty, home, Ino(999_999)))
    assert [listing.attr.ino for listing in answer.listings] == [empty, home]
    for listing in answer.listings:
        ino = listing.attr.ino
        assert listing.attr == await maker.getattr(ino)
        assert listing.attr.parent == (await maker.getattr(ino)).parent
        assert (listing.settled, listing.complete, listing.filled) == (True, True, True)
        assert [one.dentry for one in listing.entries] == await maker.readdir(ino, 0, 100)
        for entry in listing.entries:
            attr = entry.dentry.attr
            assert entry.settled
            if attr.is_file and attr.size:
                assert entry.file_map == await maker.file_map(attr.ino)
            else:
                assert entry.file_map is None
    assert answer.leased == []


async def test_entries_have_a_bound(maker: PostgresMeta) -> None:
    homes = [await directory(maker, ROOT_INO, b"d%d" % number, 4) for number in range(3)]
    first, second = (await maker.read_tree(request(*homes, entries=7))).listings
    assert (names(first), first.complete) == ([b"f0", b"f1", b"f2", b"f3"], True)
    assert (names(second), second.complete) == ([b"f0", b"f1"], False)


async def test_contents_have_a_bound(maker: PostgresMeta) -> None:
    homes = [await directory(maker, ROOT_INO, b"d%d" % number) for number in range(3)]
    for home in homes:
        for number in range(3):
            await write(maker, home, b"f%d" % number, bytes(1000))
    listings = (await maker.read_tree(request(*homes, content=4000))).listings
    maps = [[entry.file_map is not None for entry in one.entries] for one in listings]
    assert maps == [[True] * 3, [True, False, False], [False] * 3]
    assert [listing.filled for listing in listings] == [True, False, False]
    only = TreeRequest((homes[0], homes[1], homes[2]), 1000, 4000, maps_only=True)
    assert [one.attr.ino for one in (await maker.read_tree(only)).listings] == homes[:2]
    # A map that does not fit is the end, and the next call begins there.
    last = (await maker.read_tree(only)).listings[-1]
    assert (names(last), last.filled, last.complete) == ([b"f0", b"f1"], False, False)
    after = last.entries[0].dentry.cookie
    more = TreeRequest((homes[1], homes[2]), 1000, 4000, maps_only=True, after=after)
    rest, following = (await maker.read_tree(more)).listings
    assert (names(rest), rest.filled, rest.complete) == ([b"f1", b"f2"], True, True)
    assert names(following) == [b"f0", b"f1", b"f2"]
    none = (await maker.read_tree(request(homes[0], content=0))).listings[0]
    assert not none.filled
    assert all(entry.file_map is None for entry in none.entries)


async def test_long_maps_are_left_out(maker: PostgresMeta) -> None:
    home = await directory(maker, ROOT_INO, b"home")
    await write(maker, home, b"parts", *(b"x" for _ in range(17)), step=100_000)
    await write(maker, home, b"bytes", bytes(40 * KIB), bytes(40 * KIB))
    await write(maker, home, b"short", b"x")
    (listing,) = (await maker.read_tree(request(home))).listings
    found = {entry.dentry.name: entry.file_map is not None for entry in listing.entries}
    assert found == {b"parts": False, b"bytes": False, b"short": True}
    # Another call would not return them either.
    assert listing.filled


async def test_the_next_directories_are_leased(
    pg_volume: InPostgres, maker: PostgresMeta, holder: PostgresMeta
) -> None:
    home = await directory(maker, ROOT_INO, b"home", 1)
    inside = [await directory(maker, home, b"d%d" % number) for number in range(4)]
    beside = await directory(maker, ROOT_INO, b"beside")
    file = (await maker.lookup(home, b"f0")).ino
    assert await holder.take_lease(home)
    asked = TreeRequest((home,), 100, take=(beside, file, Ino(999_999)), leases=3)
    answer = await holder.read_tree(asked)
    assert sorted(answer.leased) == sorted([beside, *inside[:3]])
    assert await leases(pg_volume, holder.session) == {home, beside, *inside[:3]}
    # The rows have the number of this call, and later ones may end them.
    await holder.give_back(answer.leased)
    assert await leases(pg_volume, holder.session) == {home}
    # A session without leases gets none.
    assert (await maker.read_tree(asked)).leased == []


async def test_a_session_with_priority_comes_first(
    pg_volume: InPostgres, maker: PostgresMeta, holder: PostgresMeta
) -> None:
    homes = [await directory(maker, ROOT_INO, b"d%d" % number) for number in range(2)]
    query = "INSERT INTO recall VALUES ($1, $2, clock_timestamp() + interval '1 minute')"
    await pg_volume.rows(query, homes[0], maker.session)
    answer = await holder.read_tree(TreeRequest((ROOT_INO,), 100, leases=10))
    assert answer.leased == [homes[1]]


@pytest.mark.promise("V1")
async def test_answers_beside_a_change_are_not_settled(
    pg_volume: InPostgres, maker: PostgresMeta
) -> None:
    home = await directory(maker, ROOT_INO, b"home", 2)
    other = await directory(maker, ROOT_INO, b"other", 1)
    file = (await maker.lookup(home, b"f1")).ino
    admin = await pg_volume.admin()
    try:
        for ino, expected in (
            (home, [(False, [True, True]), (True, [True])]),
            (file, [(True, [True, False]), (True, [True])]),
        ):
            await admin.execute("BEGIN")
            await admin.execute("SELECT 1 FROM inode WHERE ino = $1 FOR NO KEY UPDATE", ino)
            listings = (await maker.read_tree(request(home, other))).listings
            found = [(one.settled, [entry.settled for entry in one.entries]) for one in listings]
            assert found == expected
            await admin.execute("COMMIT")
            listings = (await maker.read_tree(request(home, other))).listings
            assert all(one.settled and all(e.settled for e in one.entries) for one in listings)
    finally:
        await admin.close()


async def test_an_impossible_row_is_an_error(pg_volume: InPostgres, maker: PostgresMeta) -> None:
    pg_volume.verify = False
    home = await directory(maker, ROOT_INO, b"home", 1)
    await pg_volume.rows("UPDATE dentry SET name = 'a/b' WHERE parent = $1", home)
    with pytest.raises(Corrupt):
        await maker.read_tree(request(home))


class Walk:
    """A walk of a mount's metadata, with the statements that it costs."""

    def __init__(self, store: PostgresMeta, monkeypatch: pytest.MonkeyPatch) -> None:
        self.meta = LeasedMeta(store)
        self.calls: list[str] = []
        tell = store._links.tell

        async def told(
            name: str, args: tuple[object, ...], deadline: float | None = None
        ) -> tuple[Rows, bool]:
            if name not in BACKGROUND:
                self.calls.append(name)
            return await tell(name, args, deadline)

        monkeypatch.setattr(store._links, "tell", told)

    async def find(self, home: Ino, *, opens: bool) -> dict[bytes, object]:
        """Return what is below a directory by name, and the inline bytes of files."""
        found: dict[bytes, object] = {}
        await self.meta.parent(home)
        for entry in await self.meta.readdir(home, 0, 410):
            name = b"%d/" % home + entry.name
            if entry.attr.is_dir:
                found[name] = await self.meta.getattr(entry.attr.ino)
                found |= await self.find(entry.attr.ino, opens=opens)
            elif opens:
                file_map = await self.meta.open(entry.attr.ino)
                found[name] = file_map
                await self.meta.release(entry.attr.ino)
            else:
                found[name] = entry.attr
        return found

    def taken(self) -> list[str]:
        """Return the statements since the last call of this method."""
        calls, self.calls = self.calls, []
        return calls


@pytest_asyncio.fixture
async def walk(pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Walk]:
    """A session with a cache."""
    made = Walk(PostgresMeta(pg_volume.config, leases=True), monkeypatch)
    await made.meta.start()
    yield made
    await made.meta.close()


async def project(maker: PostgresMeta) -> list[Ino]:
    """Create 300 directories, three levels deep, with ten small files in each."""
    made = []
    for number in range(10):
        top = await directory(maker, ROOT_INO, b"top%d" % number, 10)
        made.append(top)
        for middle in range(4):
            home = await directory(maker, top, b"m%d" % middle, 10)
            made.append(home)
            made += [await directory(maker, home, b"b%d" % bottom, 10) for bottom in range(6)]
    return made[:300]


@pytest.mark.timeout(120)
async def test_a_walk_costs_round_trips_per_hundred_directories(
    maker: PostgresMeta, walk: Walk
) -> None:
    made = await project(maker)
    count = len(made)
    walk.taken()
    found = {}
    for opens in (False, True):
        found = await walk.find(ROOT_INO, opens=opens)
        assert len(found) >= 11 * count - 1
        cold = walk.taken()
        assert len(cold) <= 8 + count // 10, cold
    # Another session changes what was read ahead, and the next walk sees it.
    file = (await maker.lookup(made[-1], b"f3")).ino
    changed = await maker.setattr(file, SetAttr(mode=0o600))
    await write(maker, made[5], b"new", b"new")
    again = await walk.find(ROOT_INO, opens=False)
    assert len(again) == len(found) + 1
    assert again[b"%d/f3" % made[-1]] == changed


@pytest.mark.parametrize("order", ["forwards", "backwards", "at random"])
async def test_reads_of_a_large_directory_cost_few_round_trips(
    maker: PostgresMeta, walk: Walk, order: str
) -> None:
    """By name, without a listing; only a reader that goes forwards gets contents ahead."""
    home = await directory(maker, ROOT_INO, b"home")
    files = [b"%04d" % number for number in range(400)]
    for name in files:
        await write(maker, home, name, 1000 * name)
    if order == "backwards":
        files.reverse()
    elif order == "at random":
        random.Random(1).shuffle(files)
    await walk.meta.lookup(ROOT_INO, b"home")
    walk.taken()
    for name in files:
        ino = (await walk.meta.lookup(home, name)).ino
        if walk.meta.open_now(ino) is None:
            await walk.meta.open(ino)
        assert (await walk.meta.file_map(ino)).refs[0].inline == 1000 * name
        await walk.meta.release(ino)
    calls = Counter(walk.taken())
    # A reader in another order costs about a call for each file.
    assert calls.total() <= (40 if order == "forwards" else len(files) * 5 // 4), calls


async def test_a_delegation_elsewhere_covers_the_answer(
    pg_volume: InPostgres, maker: PostgresMeta, walk: Walk, tmp_path: Path
) -> None:
    home = await directory(maker, ROOT_INO, b"home", 2)
    below = await directory(maker, home, b"below", 2)
    writer = DelegatedMeta(
        PostgresMeta(pg_volume.config, leases=True, delegates=True),
        pg_volume.config.schema,
        tmp_path / "journals",
    )
    await writer.start()
    try:
        await writer.readdir(below, 0, 100)
        await writer.create(below, b"new", 0o600, ME, exclusive=True)
        await writer.mkdir(below, b"sub", 0o700, ME)
        rows = await pg_volume.rows("SELECT ino FROM delegation")
        assert below in {row[0] for row in rows}
        answer = await maker.read_tree(request(home, below, ROOT_INO))
        assert [listing.attr.ino for listing in answer.listings] == [ROOT_INO]
        await walk.meta.readdir(ROOT_INO, 0, 100)
        await walk.meta.readdir(home, 0, 100)
        found = await walk.find(ROOT_INO, opens=False)
        assert {b"%d/new" % below, b"%d/sub" % below} <= set(found)
    finally:
        await writer.close()


@pytest.mark.timeout(120)
async def test_a_fresh_session_greps_in_few_round_trips(maker: PostgresMeta, walk: Walk) -> None:
    made = await project(maker)
    walk.taken()
    found = await walk.find(ROOT_INO, opens=True)
    cold = walk.taken()
    assert len(cold) <= 8 + len(made) // 8, cold
    for name, file_map in list(found.items())[:: len(found) // 20]:
        if hasattr(file_map, "refs"):
            home, file = name.split(b"/")
            attr = await maker.lookup(Ino(int(home)), file)
            assert file_map == await maker.file_map(attr.ino)
