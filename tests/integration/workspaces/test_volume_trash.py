"""Drives that were removed with their workspace: kept for a time, brought back, then destroyed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadName, Conflict, NotFound
from boxd.workspaces.credentials import ObjectStorage
from boxd.workspaces.idle_upkeep import IdleUpkeep
from boxd.workspaces.volume_admin import credentials_text, listing, restore
from boxd.workspaces.volumes import RESTORE_MARGIN, Volumes
from tests.harness.simulation.world import TurnedClock
from tests.harness.volumes.leaks import listed
from tests.harness.workspaces.drives import OWNER, SIZE, Parts, parts
from tests.harness.workspaces.volumes import World, world
from wrkfs.data.s3 import S3Blocks
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from tests.plugins.strict_logs import AssertLogs

__all__ = ["parts", "world"]

KEPT = timedelta(hours=24)


class Trashed:
    """The parts, with a trash and a clock that the test turns."""

    def __init__(self, parts: Parts, world: World) -> None:
        self.parts, self.clock = parts, TurnedClock()
        storage = ObjectStorage(world.target, world.issuer)
        self.volumes = Volumes(
            world.store, world.provisioner, storage, world.sealer, clock=self.clock, trash=KEPT
        )
        parts.pool._volumes = parts.attacher._volumes = parts.drives._volumes = self.volumes

    async def remove(self, workspace: str) -> str:
        """Removes a drive; its id."""
        volume_id = await self.volumes.id_of(OWNER, workspace)
        assert volume_id is not None
        with self.parts.drives.closing(OWNER, workspace):
            until = await self.parts.drives.remove(OWNER, workspace)
        assert until == self.clock.now() + KEPT
        return volume_id


@pytest.fixture
def trashed(parts: Parts, world: World) -> Trashed:
    """See Trashed."""
    return Trashed(parts, world)


async def test_a_removed_drive_comes_back_with_its_files(trashed: Trashed, world: World) -> None:
    parts = trashed.parts
    await trashed.volumes.sweep()  # credentials of others are on the same object server
    await parts.write("ws1")
    volume_id = await trashed.remove("ws1")
    assert await parts.drives.usage(OWNER) == {}
    assert await parts.drives.is_empty(OWNER, "ws1")
    assert await trashed.volumes.sweep() == 0
    await parts.write("ws1", b"new")
    with pytest.raises(Conflict):
        await restore(world.store, trashed.volumes, volume_id, None)
    assert await restore(world.store, trashed.volumes, volume_id, "Other") == "other"
    assert await world.store.workspaces(OWNER) == ["other"]
    found = await parts.drives.usage(OWNER)
    assert {name: use.files for name, use in found.items()} == {"ws1": 1, "other": 1}
    async with parts.drives.use(OWNER, "other", create=False) as fs:
        assert fs is not None
        handle = await fs.open((await fs.lookup(ROOT_INO, b"file")).ino, 0)
        assert await handle.read(0, SIZE + 1) == bytes(SIZE)
        await handle.close()


async def test_after_its_time_nothing_of_it_is_left(trashed: Trashed, world: World) -> None:
    parts = trashed.parts
    await parts.write(None)
    before = await world.traces()
    await parts.write("ws1")
    store = await parts.store("ws1")
    volume_id = await trashed.remove("ws1")
    upkeep = IdleUpkeep(trashed.volumes)
    trashed.clock.turn(KEPT - RESTORE_MARGIN)
    await upkeep.run_round()
    assert listed(store)
    with pytest.raises(NotFound, match=volume_id):
        await trashed.volumes.restore(volume_id, "ws1")
    trashed.clock.turn(RESTORE_MARGIN)
    await upkeep.run_round()
    assert not listed(store)
    assert await world.traces() == before


async def test_what_could_not_be_destroyed_is_destroyed_later(
    trashed: Trashed, world: World, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    before = await world.traces()
    await trashed.parts.write("ws1")
    await trashed.parts.write("ws2")
    for workspace in ("ws1", "ws2"):
        await trashed.remove(workspace)
    trashed.clock.turn(KEPT)
    clear, failures = S3Blocks.clear, [NotFound("the store is away")]

    async def failing(self: S3Blocks) -> None:
        if failures:
            raise failures.pop()
        await clear(self)

    monkeypatch.setattr(S3Blocks, "clear", failing)
    with assert_logs("not deleted yet"):
        assert await trashed.volumes.empty_trash() == 1
    assert await trashed.volumes.empty_trash() == 1
    assert await world.traces() == before


async def test_the_operator_sees_and_opens_what_is_in_the_trash(
    trashed: Trashed, world: World
) -> None:
    await trashed.parts.write("ws1")
    old = await trashed.remove("ws1")
    await trashed.parts.write("ws1")
    rows = {row[0]: row[2:] for row in listing(await world.store.list_volumes())}
    new = await trashed.volumes.id_of(OWNER, "ws1")
    assert new is not None
    assert [rows[one][0] for one in (old, new)] == ["ws1", "ws1"]
    assert (rows[old][2], rows[new][2]) == ("2026-01-03 03:04:05Z", "-")
    texts = [await credentials_text(world.store, trashed.volumes, one) for one in (old, new)]
    assert old in texts[0]
    assert new in texts[1]


async def test_what_is_not_in_the_trash_is_not_restored(trashed: Trashed, world: World) -> None:
    await trashed.parts.write("ws1")
    volume_id = await trashed.volumes.id_of(OWNER, "ws1")
    assert volume_id is not None
    for unknown in (volume_id, "0" * 32):
        with pytest.raises(NotFound):
            await restore(world.store, trashed.volumes, unknown, "ws2")
    with pytest.raises(BadName):
        await restore(world.store, trashed.volumes, volume_id, "no/name")
