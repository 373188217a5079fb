"""Fixture `drive`: a volume in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.wrkfs.drive import Drive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def drive() -> AsyncIterator[Drive]:
    """A volume in memory; its sessions are closed afterwards."""
    made = Drive()
    yield made
    await made.close()
