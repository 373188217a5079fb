"""Fixture `ops`: the operations of `world`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.simulation.world import World


@pytest.fixture
def ops(world: World) -> Operations:
    """Its operations."""
    return world.operations
