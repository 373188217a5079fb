"""The cache under leases has a maximum size, whatever calls are made."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from tests.unit.wrkfs.meta.lessor import Lessor
from wrkfs.errors import WrkfsError
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.types import ROOT_INO, Attr, Caller, Commit, Extent, Ino, SetAttr, SliceId

if TYPE_CHECKING:
    from wrkfs.meta.interface.leases import LeaseStore

ME = Caller(0, 0)
ROOM = 600
DIRECTORIES = 12
FILES = 3 * ROOM // DIRECTORIES


def counted(meta: LeasedMeta) -> int:
    """Count everything that is cached."""
    scans = [one.scan for one in meta.table.directories.values() if one.scan is not None]
    orders = [one.order for one in meta.table.directories.values() if one.order is not None]
    return (
        sum(len(scan.names) for scan in scans)
        + sum(map(len, orders))
        + sum(
            1 + len(one.names) + len(one.attrs) + len(one.maps) + len(one.kernel_inodes)
            for one in meta.table.directories.values()
        )
    )


def check(meta: LeasedMeta) -> None:
    """Check the limit and the consistency of the cache."""
    assert counted(meta) <= ROOM
    assert counted(meta) <= meta.table._size
    assert set(meta.table.homes) == {
        ino for one in meta.table.directories.values() for ino in one.attrs
    }
    assert meta.leases._again <= set(meta.leases._leaving)
    assert not meta.leases._taking


VERBS = (
    *("look", "look", "absent", "list", "part", "open", "write", "create", "link", "remove"),
    *("move", "mkdir", "mode"),
)


async def furnish(maker: Lessor) -> list[Ino]:
    """Create directories with many files, some of them with bytes."""
    found = []
    slices = 0
    for number in range(DIRECTORIES):
        home = (await maker.mkdir(ROOT_INO, b"d%d" % number, 0o755, ME)).ino
        found.append(home)
        for index in range(FILES):
            made, _ = await maker.create(home, b"f%d" % index, 0o644, ME, exclusive=True)
            for part in range(index % 4):
                slices += 1
                extent = Extent(part * 1000, SliceId(slices), 1000, b"", bytes(1000))
                await maker.commit(Commit(made.attr.ino, (extent,), durable=False))
            await maker.release(made.attr.ino)
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_kept_has_a_bound(seed: int) -> None:
    maker = Lessor()
    await maker.start()
    homes = await furnish(maker)
    lessor = Lessor(maker.volume)
    meta = LeasedMeta(cast("LeaseStore", lessor), room=ROOM)
    await meta.start()
    chance = random.Random(seed)
    fresh, most = 10**6, 0
    try:
        for _ in range(6000):
            home, fresh = chance.choice(homes), fresh + 1
            with suppress(WrkfsError):
                await step(meta, chance, home, fresh)
            check(meta)
            most = max(most, len(meta.table.directories))  # the last step may have been a recall
            if chance.random() < 0.01:
                lessor.recall(home)
        assert most
        assert max(len(lessor.leases), len(meta.leases._not_before)) <= ROOM
    finally:
        await meta.close()
        await maker.close()


async def step(meta: LeasedMeta, chance: random.Random, home: Ino, fresh: int) -> None:
    """Make one call, as a program does."""
    name = b"f%d" % chance.randrange(FILES)
    verb = chance.choice(VERBS)
    if verb == "absent":
        await meta.lookup(home, b"absent%d" % fresh)
    elif verb == "list":
        for entry in await meta.readdir(home, 0, 50):
            meta.table.attr_validity(entry.attr)
    elif verb == "part":
        entries = await meta.readdir(home, 0, 20)
        while entries and chance.random() < 0.9:
            entries = await meta.readdir(home, entries[-1].cookie, 20)
    elif verb == "create":
        found, _ = await meta.create(home, b"new%d" % fresh, 0o644, ME, exclusive=True)
        meta.table.attr_validity(found.attr)
        await meta.release(found.attr.ino)
    elif verb == "mkdir":
        meta.table.attr_validity(await meta.mkdir(home, b"dir%d" % fresh, 0o755, ME))
    elif verb == "remove":
        await meta.unlink(home, name)
    elif verb == "move":
        await meta.rename(home, name, home, b"moved%d" % fresh)
    else:
        await use(meta, await meta.lookup(home, name), verb, fresh, home)


async def use(meta: LeasedMeta, attr: Attr, verb: str, fresh: int, home: Ino) -> None:
    """Make one call on a file."""
    meta.table.attr_validity(attr)
    if verb == "open":
        await meta.open(attr.ino)
        await meta.release(attr.ino)
    elif verb == "write":
        extent = Extent(0, SliceId(fresh), 5, b"", b"12345")
        await meta.commit(Commit(attr.ino, (extent,), durable=False))
        await meta.file_map(attr.ino)
    elif verb == "link":
        await meta.link(attr.ino, home, b"link%d" % fresh)
    elif verb == "mode":
        meta.table.attr_validity(await meta.setattr(attr.ino, SetAttr(mode=0o600)))
    else:
        await meta.getattr(attr.ino)


async def test_the_kernel_may_rely_on_a_newer_access_time_of_this_session() -> None:
    maker = Lessor()
    await maker.start()
    home = (await maker.mkdir(ROOT_INO, b"home", 0o755, ME)).ino
    await maker.create(home, b"file", 0o644, ME, exclusive=True)
    meta = LeasedMeta(cast("LeaseStore", Lessor(maker.volume)))
    await meta.start()
    try:
        await meta.readdir(home, 0, 10)
        for attr in (await meta.getattr(home), await meta.lookup(home, b"file")):
            assert meta.table.attr_validity(attr) > 0
            read = replace(attr, atime_ns=attr.atime_ns + 1)
            assert meta.table.attr_validity(read) > 0
            older = replace(attr, atime_ns=attr.atime_ns - 1)
            grown = replace(read, size=attr.size + 1)
            assert meta.table.attr_validity(older) == meta.table.attr_validity(grown) == 0
    finally:
        await meta.close()
        await maker.close()
