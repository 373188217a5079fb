"""Releases gather and share one call; none is lost, none removes what is open again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.harness.wait import DEADLINE, until
from wrkfs.errors import QuotaExceeded, Unavailable
from wrkfs.meta.postgres import files
from wrkfs.meta.postgres.links import Link
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, Commit, Extent, SliceId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncpg

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.postgres.links import Rows
    from wrkfs.types import Ino

ME = Caller(0, 0)


class Calls:
    """What a session changes, and when."""

    def __init__(self, meta: PostgresMeta, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mutate = meta._session.mutate
        self.made: list[tuple[str, object]] = []
        self.held: dict[str, asyncio.Event] = {}
        """Calls that are not sent before the event."""
        monkeypatch.setattr(meta._session, "mutate", self._told)

    async def _told(self, name: str, *args: object, is_change: bool = True) -> asyncpg.Record:
        self.made.append((name, args[0] if args else None))
        if name in self.held:
            await self.held[name].wait()
        return await self._mutate(name, *args, is_change=is_change)

    def named(self, name: str) -> list[Any]:
        """First arguments of these calls."""
        return [first for made, first in self.made if made == name]


@pytest_asyncio.fixture
async def meta(pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch) -> PostgresMeta:
    """A session whose releases wait until somebody needs them done."""
    monkeypatch.setattr(files, "_RELEASE_DELAY", 3600.0)
    return await pg_volume.session()


@pytest.fixture
def calls(meta: PostgresMeta, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What it changes."""
    return Calls(meta, monkeypatch)


async def made(meta: PostgresMeta, *names: bytes) -> list[Ino]:
    """New files, open."""
    return [
        (await meta.create(ROOT_INO, name, 0o600, ME, exclusive=True))[0].attr.ino for name in names
    ]


async def held(volume: InPostgres) -> set[Ino]:
    """What is held, by the database."""
    return {row["ino"] for row in await volume.rows("SELECT ino FROM sustained")}


async def until_asked(calls: Calls, name: str, count: int = 1) -> None:
    """Waits until these calls have been made."""
    await until(lambda: len(calls.named(name)) >= count)


async def test_many_share_one_call(pg_volume: InPostgres, meta: PostgresMeta, calls: Calls) -> None:
    inos = await made(meta, *(b"f%d" % number for number in range(20)))
    for ino in inos:
        await meta.release(ino)
    assert calls.named("release") == []
    assert await held(pg_volume) == set(inos)
    await meta.statfs()
    assert [sorted(one) for one in calls.named("release")] == [inos]
    assert await held(pg_volume) == set()


async def test_too_many_do_not_wait(
    pg_volume: InPostgres, meta: PostgresMeta, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_RELEASE_MANY", 3)
    for ino in await made(meta, b"a", b"b", b"c"):
        await meta.release(ino)
    await until_asked(calls, "release")
    await meta._release_waiting()
    assert await held(pg_volume) == set()


async def test_they_are_sent_after_a_moment(
    pg_volume: InPostgres, meta: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_RELEASE_DELAY", 0.0)
    (ino,) = await made(meta, b"a")
    await meta.release(ino)
    async with asyncio.timeout(DEADLINE):
        left = await held(pg_volume)
        while left:
            left = await held(pg_volume)


@pytest.mark.promise("V5")
@pytest.mark.parametrize("how", ["open", "create", "sustain"])
async def test_a_file_that_is_opened_again_stays_held(
    pg_volume: InPostgres, meta: PostgresMeta, calls: Calls, how: str
) -> None:
    (ino,) = await made(meta, b"a")
    await meta.release(ino)
    if how == "open":
        await meta.open(ino)
    elif how == "create":
        await meta.create(ROOT_INO, b"a", 0o600, ME, exclusive=False)
    else:
        await meta.sustain([ino])
    await meta.statfs()
    assert calls.named("release") == []
    assert calls.named("open") == calls.named("sustain_all") == []
    assert await held(pg_volume) == {ino}
    await meta.release(ino)
    await meta.statfs()
    assert await held(pg_volume) == set()


@pytest.mark.promise("V5")
async def test_who_opens_in_the_step_in_which_they_are_sent_waits(
    pg_volume: InPostgres, meta: PostgresMeta, calls: Calls
) -> None:
    (ino,) = await made(meta, b"a")
    await meta.release(ino)
    calls.held["release"] = asyncio.Event()
    opening = asyncio.create_task(meta.open(ino))
    # The timer's step: the task that sends begins after the one that opens.
    meta._release_now()
    await until_asked(calls, "release")
    for _ in range(10):
        await asyncio.sleep(0)
    assert calls.named("open") == []
    calls.held["release"].set()
    await opening
    assert await held(pg_volume) == {ino}


@pytest.mark.promise("V5")
async def test_a_create_that_is_answered_in_the_step_in_which_they_are_sent_opens_anew(
    pg_volume: InPostgres, meta: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ino,) = await made(meta, b"a")
    await meta.release(ino)
    mutate = meta._session.mutate

    async def crossed(name: str, *args: object, is_change: bool = True) -> asyncpg.Record:
        answer = await mutate(name, *args, is_change=is_change)
        if name == "create":
            meta._release_now()
        return answer

    monkeypatch.setattr(meta._session, "mutate", crossed)
    found, new = await meta.create(ROOT_INO, b"a", 0o600, ME, exclusive=False)
    assert (found.attr.ino, new) == (ino, False)
    await meta.statfs()
    assert await held(pg_volume) == {ino}


async def test_an_open_that_fails_leaves_nothing_behind(
    pg_volume: InPostgres, meta: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ino,) = await made(meta, b"a")
    await meta.release(ino)

    async def fail(_: Ino) -> None:
        raise Unavailable

    with monkeypatch.context() as patch:
        patch.setattr(meta, "file_map", fail)
        with pytest.raises(Unavailable):
            await meta.open(ino)
    await meta.statfs()
    assert await held(pg_volume) == set()


async def test_a_name_that_is_removed_sends_them(
    pg_volume: InPostgres, meta: PostgresMeta, calls: Calls
) -> None:
    await meta.mkdir(ROOT_INO, b"home", 0o755, ME)
    inos = await made(meta, b"a", b"b", b"c")
    removals: list[Callable[[], Awaitable[object]]] = [
        lambda: meta.unlink(ROOT_INO, b"a"),
        lambda: meta.rmdir(ROOT_INO, b"home"),
        lambda: meta.remove_tree(ROOT_INO, b"c"),
    ]
    for number, remove in enumerate(removals):
        await meta.release(inos[number])
        await remove()
        await until_asked(calls, "release", number + 1)
    await meta.statfs()
    assert await held(pg_volume) == set()
    assert len(await pg_volume.rows("SELECT FROM inode WHERE ino > 1")) == 1


async def test_what_was_let_go_of_does_not_count_against_the_quota(
    pg_volume: InPostgres, meta: PostgresMeta, calls: Calls
) -> None:
    (ino,) = await made(meta, b"a")
    await meta.commit(Commit(ino, (Extent(0, SliceId(1), 4, b"", b"1234"),)))
    other = await pg_volume.session()
    await other.unlink(ROOT_INO, b"a")
    await pg_volume.limit(4, 1)
    with pytest.raises(QuotaExceeded):
        await meta.mknod(ROOT_INO, b"b", 0o600, 0, ME)
    assert calls.named("release") == []
    await meta.release(ino)
    await meta.mknod(ROOT_INO, b"b", 0o600, 0, ME)
    assert calls.named("release") == [[ino]]
    assert (await meta.statfs()).inodes_used == 1


@pytest.mark.promise("D3")
async def test_who_waits_for_them_does_not_wait_for_ever(
    meta: PostgresMeta, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an outage they would take as long as the question itself."""
    monkeypatch.setattr(files, "_RELEASE_WAIT", 0.0)
    (ino,) = await made(meta, b"a")
    await meta.release(ino)
    calls.held["release"] = asyncio.Event()
    assert (await meta.statfs()).inodes_used == 1
    calls.held["release"].set()


async def test_what_waits_goes_with_the_session(
    pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_RELEASE_DELAY", 3600.0)
    meta = PostgresMeta(pg_volume.config)
    await meta.start()
    inos = await made(meta, b"a", b"b")
    await meta.release(inos[0])
    meta._release_now()
    await meta.release(inos[1])
    await meta.close()
    assert not meta._releases
    assert await held(pg_volume) == set()


async def test_a_new_epoch_sends_none_of_the_old_one(
    pg_volume: InPostgres, meta: PostgresMeta, calls: Calls
) -> None:
    first, second = await made(meta, b"a", b"b")
    await meta.release(first)
    await meta.open(second)
    await pg_volume.fence(meta)
    await meta.rejoin()
    assert await held(pg_volume) == set()
    await meta.open(first)
    await meta.statfs()
    assert calls.named("release") == []
    assert await held(pg_volume) == {first}


@pytest.mark.promise("V5")
async def test_who_opens_what_waits_while_a_crash_is_found_out_has_a_row(
    pg_volume: InPostgres, meta: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ino,) = await made(meta, b"a")
    await meta.release(ino)
    # What a crash may do: the row was not durable, and the run is another one.
    await pg_volume.rows("DELETE FROM sustained")
    await pg_volume.rows("UPDATE lease SET taken_at = clock_timestamp() WHERE ino = 0")
    link = Link(await meta._links.open_dedicated())
    fetch = link.fetch

    async def fetched(name: str, args: tuple[object, ...]) -> Rows:
        rows = await fetch(name, args)
        await meta.open(ino)
        return rows

    monkeypatch.setattr(link, "fetch", fetched)
    await meta._session._survey(link)
    link.connection.terminate()
    assert await held(pg_volume) == {ino}
    await meta.release(ino)
    await meta.statfs()
    assert await held(pg_volume) == set()


async def test_opens_and_releases_in_any_order_agree_with_the_database(
    pg_volume: InPostgres, meta: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_RELEASE_DELAY", 0.0)
    inos = await made(meta, b"a", b"b", b"c")
    for ino in inos:
        await meta.release(ino)

    async def work(number: int) -> None:
        ino, name = inos[number % 3], b"abc"[number % 3 : number % 3 + 1]
        for round_ in range(20):
            if (round_ + number) % 2:
                await meta.open(ino)
            else:
                await meta.create(ROOT_INO, name, 0o600, ME, exclusive=False)
            assert ino in await held(pg_volume)
            await meta.release(ino)

    await asyncio.gather(*(work(number) for number in range(6)))
    await meta.statfs()
    assert await held(pg_volume) == set()
