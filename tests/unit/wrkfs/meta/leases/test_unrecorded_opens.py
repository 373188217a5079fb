"""Files that are open under leases: recorded in batches, soon, and released in every case."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
import pytest_asyncio

from tests.harness.wait import DEADLINE, until
from tests.unit.wrkfs.meta.lessor import Lessor
from wrkfs.errors import Fenced, Unavailable, WrkfsError
from wrkfs.meta.leases import unrecorded_opens
from wrkfs.meta.leases.unrecorded_opens import UnrecordedOpens
from wrkfs.types import ROOT_INO, Caller, Ino

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from wrkfs.meta.interface.leases import LeaseStore

ME = Caller(0, 0)
FILES = 20


class Slow(Lessor):
    """A store that answers on request; a failed call may have taken effect."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.failure: WrkfsError | None = None

    async def sustain(self, inos: Sequence[Ino]) -> None:
        self.asked.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await super().sustain(inos)


@pytest_asyncio.fixture
async def store() -> AsyncIterator[Slow]:
    """Return a store with files 2 to FILES + 1, not open."""
    made = Slow()
    await made.start()
    for number in range(FILES):
        found, _ = await made.create(ROOT_INO, b"f%d" % number, 0o644, ME, exclusive=True)
        await made.release(found.attr.ino)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def opens(store: Slow) -> AsyncIterator[UnrecordedOpens]:
    """The opens under leases."""
    made = UnrecordedOpens(cast("LeaseStore", store))
    yield made
    await made.close()


def files(store: Slow) -> list[Ino]:
    """All of them."""
    return sorted(ino for ino in store.volume.nodes if ino != ROOT_INO)


def held(store: Slow) -> list[Ino]:
    """Return the files that the store holds open."""
    return sorted(store.volume.sustained)


async def test_what_stays_open_is_told_in_one_call(store: Slow, opens: UnrecordedOpens) -> None:
    opens.start()
    for ino in files(store):
        opens.add(ino)
    await until(lambda: held(store) == files(store))
    assert store.sustained == [files(store)]
    for ino in files(store):
        assert await opens.release(ino)
    assert held(store) == []
    assert not await opens.release(files(store)[0])


async def test_what_is_closed_before_the_next_look_costs_nothing(
    store: Slow, opens: UnrecordedOpens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unrecorded_opens, "SOON", 0.001)
    opens.start()
    short, stays = files(store)[:2]
    while not store.sustained:  # every check finds another handle
        opens.add(short)
        opens.add(stays)
        await asyncio.sleep(0)
        await opens.release(short)
    assert {ino for call in store.sustained for ino in call} == {stays}


async def test_many_are_told_in_a_few_calls(
    store: Slow, opens: UnrecordedOpens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unrecorded_opens, "BATCH", 8)
    for ino in files(store):
        opens.add(ino)
    await asyncio.gather(opens.sustain(opens.all), opens.sustain(files(store)[:3]))
    assert sorted(ino for call in store.sustained for ino in call) == files(store)
    assert [len(call) for call in store.sustained] == [8, 8, 4]


async def test_a_file_that_is_closed_while_it_is_told_is_not_held(
    store: Slow, opens: UnrecordedOpens
) -> None:
    closed, stays = files(store)[:2]
    opens.add(closed)
    opens.add(stays)
    store.gate.clear()
    telling = asyncio.create_task(opens.sustain(opens.all))
    await store.asked.wait()
    closing = asyncio.create_task(opens.release(closed))
    await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(telling, closing)
    assert held(store) == [stays]


async def test_who_closes_may_go_away_while_it_is_told(store: Slow, opens: UnrecordedOpens) -> None:
    ino = files(store)[0]
    opens.add(ino)
    store.gate.clear()
    telling = asyncio.create_task(opens.sustain([ino]))
    await store.asked.wait()
    closing = asyncio.create_task(opens.release(ino))
    await asyncio.sleep(0)
    closing.cancel()
    telling.cancel()
    await asyncio.gather(closing, telling, return_exceptions=True)
    store.gate.set()
    await until(lambda: store.sustained)
    await until(lambda: held(store) == [])


async def test_a_file_that_is_opened_again_while_it_is_told_stays(
    store: Slow, opens: UnrecordedOpens
) -> None:
    ino = files(store)[0]
    opens.add(ino)
    store.gate.clear()
    telling = asyncio.create_task(opens.sustain([ino]))
    await store.asked.wait()
    closing = asyncio.create_task(opens.release(ino))
    await asyncio.sleep(0)
    opens.add(ino)
    store.gate.set()
    await asyncio.gather(telling, closing)
    assert held(store) == [ino]
    await opens.release(ino)
    assert held(store) == []


async def test_what_was_told_for_an_older_epoch_is_told_again(
    store: Slow, opens: UnrecordedOpens
) -> None:
    ino = files(store)[0]
    opens.add(ino)
    store.gate.clear()
    telling = asyncio.create_task(opens.sustain([ino]))
    await store.asked.wait()
    opens.clear()
    store.gate.set()
    await telling
    opens.add(ino)
    await opens.sustain([ino])
    assert store.sustained == [[ino], [ino]]


@pytest.mark.parametrize("failure", [Unavailable("x"), Fenced()])
async def test_what_could_not_be_told_is_told_later(
    store: Slow, opens: UnrecordedOpens, monkeypatch: pytest.MonkeyPatch, failure: WrkfsError
) -> None:
    monkeypatch.setattr(unrecorded_opens, "PAUSE", 0.0)
    store.failure = failure
    opens.start()
    ino = files(store)[0]
    opens.add(ino)
    await asyncio.wait_for(store.asked.wait(), DEADLINE)
    store.failure = None
    await until(lambda: held(store) == [ino])
