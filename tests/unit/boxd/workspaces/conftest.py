"""Fixture `box`: one whose workspace has a drive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.state.records import new_box
from boxd.boxes.state.requests import BoxRequest
from boxd.boxes.state.settings import Defaults, box_settings
from boxd.names.spec import parse_spec
from tests.harness.simulation.world import FakeCatalog

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A box of the workspace `ws`, with its drive."""
    defaults = Defaults("debian", "fake", drive=True, deadline_max=timedelta(days=1))
    return new_box(
        BoxRequest("owner", "ws", parse_spec("web")),
        box_settings(parse_spec("web"), defaults, FakeCatalog(tmp_path)),
        now=datetime(2026, 1, 1, tzinfo=UTC),
    )
