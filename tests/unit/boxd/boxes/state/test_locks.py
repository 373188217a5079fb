"""One lock per box name, and one for what all boxes take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.boxes.state.locks import Locks
from tests.unit.boxd.boxes.life import OWNER, up

if TYPE_CHECKING:
    from tests.harness.simulation.world import World


async def test_a_box_has_the_lock_of_its_name(world: World) -> None:
    locks = Locks()
    for text, workspace in (("web", None), ("ws1/web", "ws1")):
        box = await up(world, text)
        lock = locks.box(box)
        assert locks.name(OWNER, workspace, "web") is lock


def test_other_names_and_owners_have_other_locks() -> None:
    locks = Locks()
    found = [
        locks.name("alice", None, "web"),
        locks.name("alice", None, "db"),
        locks.name("alice", "ws1", "web"),
        locks.name("bob", None, "web"),
        locks.sums(),
    ]
    assert len({id(lock) for lock in found}) == len(found)
