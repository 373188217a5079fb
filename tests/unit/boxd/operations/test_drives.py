"""The drive of a workspace, where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadName, Forbidden, Unavailable
from tests.harness.simulation.world import ALICE, SCOPED

if TYPE_CHECKING:
    from boxd.operations import Operations


async def test_drive_that_is_not_enabled_is_unavailable(ops: Operations) -> None:
    with pytest.raises(Unavailable, match="not enabled"):
        await ops.drives.open(ALICE).__aenter__()
    with pytest.raises(BadName):
        await ops.drives.open(ALICE, "..").__aenter__()
    with pytest.raises(Forbidden):
        await ops.drives.open(SCOPED, "ws2").__aenter__()
