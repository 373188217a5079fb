from __future__ import annotations

import asyncio

from wrkfs.meta.postgres.handles import OpenFiles
from wrkfs.types import Ino

FILE = Ino(7)


async def test_the_last_of_several_handles_is_told() -> None:
    files = OpenFiles()
    files.add(FILE)
    assert not files.registered(FILE)
    files.confirm(FILE)
    files.add(FILE)
    assert files.registered(FILE)
    assert not files.drop(FILE)
    assert files.registered(FILE)
    assert files.drop(FILE)
    assert not files.registered(FILE)
    assert not files.drop(FILE)


async def test_a_confirmation_after_the_last_release_counts_for_nothing() -> None:
    files = OpenFiles()
    files.add(FILE)
    files.drop(FILE)
    files.confirm(FILE)
    assert not files.registered(FILE)


async def test_an_open_waits_for_a_release_on_its_way() -> None:
    files = OpenFiles()
    pending = files.begin_release([FILE])
    opening = asyncio.create_task(files.settled(FILE))
    await asyncio.sleep(0)
    assert not opening.done()
    files.end_release([FILE], pending)
    await opening
    await files.settled(FILE)


async def test_a_create_is_doubtful_when_a_release_crossed_it() -> None:
    files = OpenFiles()
    files.begin_create()
    files.end_release([FILE], files.begin_release([FILE]))
    assert files.end_create(FILE)
    files.begin_create()
    assert not files.end_create(FILE)
    pending = files.begin_release([FILE])
    files.begin_create()
    assert files.end_create(FILE)
    files.end_release([FILE], pending)
    files.begin_create()
    assert not files.end_create(None)


async def test_a_create_is_doubtful_when_a_release_was_on_its_way_as_it_began() -> None:
    files = OpenFiles()
    pending = files.begin_release([FILE])
    files.begin_create()
    files.end_release([FILE], pending)
    assert files.end_create(FILE)
    files.begin_create()
    assert not files.end_create(FILE)
