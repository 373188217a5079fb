"""Fixtures `world` and `sleepy`: a started core of the service on fakes; the latter suspends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A started core on fakes."""
    made = World(tmp_path)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def sleepy(tmp_path: Path) -> AsyncIterator[World]:
    """A started core on fakes whose backend suspends boxes."""
    made = World(tmp_path, suspends=True)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
