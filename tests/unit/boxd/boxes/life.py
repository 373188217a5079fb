"""Short words for the tests of box life: boxes of one owner in a `World`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.state.requests import BoxRequest
from boxd.names.spec import parse_spec
from tests.harness.simulation.world import ALICE

if TYPE_CHECKING:
    from boxd.model.box import Box
    from boxd.names.spec import BoxSpec
    from tests.harness.simulation.world import World

OWNER = ALICE.owner
RELAY_KEY = "ssh-ed25519 CLIENT"


def spec(text: str) -> BoxSpec:
    """A parsed spec."""
    return parse_spec(text, {"small", "large"}, allow_anonymous=True)


async def up(world: World, text: str = "web") -> Box:
    """The box of a spec, running."""
    wanted = spec(text)
    return await world.lifecycle.up(BoxRequest(OWNER, wanted.workspace, wanted))


async def relayed(world: World, text: str = "web") -> Box:
    """The same after somebody has come by the relay, and left."""
    wanted = spec(text)
    held = world.lifecycle.attach(
        AttachRequest(
            BoxRequest(OWNER, wanted.workspace, wanted),
            why="relay",
            key_id=None,
            relay_key=RELAY_KEY,
        )
    )
    async with held as attachment:
        return attachment.box


async def rows(world: World) -> list[Box]:
    """All boxes as stored."""
    return await world.store.all_boxes()
