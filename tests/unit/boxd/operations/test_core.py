"""Workspaces made at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.errors import Forbidden
from tests.harness.world import ALICE, SCOPED

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.world import World


async def test_scoped_key_makes_no_workspace(world: World, ops: Operations) -> None:
    with pytest.raises(Forbidden, match="create a workspace"):
        await ops.up(SCOPED, "web")
    assert await world.store.workspaces(ALICE.owner) == []
    assert await world.left_overs() == {}
