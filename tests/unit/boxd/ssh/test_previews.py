"""The preview hosts of boxes in the CLI, with fakes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Confidential
from tests.harness.simulation.world import ALICE, World
from tests.harness.ssh.console import ENDPOINT, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WITH_PREVIEWS = replace(ENDPOINT, preview_authority="preview.test")


@pytest_asyncio.fixture
async def previews(tmp_path: Path) -> AsyncIterator[World]:
    """Return the started core of a service with a preview domain."""
    world = World(tmp_path, previews=True)
    await world.start()
    yield world
    await world.close()


async def test_the_preview_host_contains_the_id_of_the_box(world: World) -> None:
    box = await world.operations.boxes.up(ALICE, "ws1/web")
    host = f"{box.id[:12]}-PORT.preview.test"
    assert host in (await run(world, "ls --wide", endpoint=WITH_PREVIEWS)).stdout.split()
    assert host in (await run(world, "info ws1/web", endpoint=WITH_PREVIEWS)).stdout.split()
    (listed,) = json.loads((await run(world, "ls --json", endpoint=WITH_PREVIEWS)).stdout)
    assert listed["preview"] == host


async def test_without_a_preview_domain_boxes_have_no_host(world: World) -> None:
    await world.operations.boxes.up(ALICE, "web")
    for line in ("ls --wide", "info web"):
        assert "PORT" not in (await run(world, line)).stdout
    (listed,) = json.loads((await run(world, "ls --json")).stdout)
    assert listed["preview"] is None


async def test_a_confidential_box_has_no_host(world: World) -> None:
    attaching = world.operations.boxes.attach(
        ALICE, BoxAccess("vault", kind="spec", why="relay", relay="ssh-ed25519 CLIENT")
    )
    async with attaching:
        assert "PORT" not in (await run(world, "ls --wide", endpoint=WITH_PREVIEWS)).stdout
    with pytest.raises(Confidential):
        async with world.operations.boxes.attach(
            ALICE, BoxAccess("vault", kind="reference", why="proxy")
        ):
            raise AssertionError


async def test_a_name_that_looks_like_a_preview_host_gets_a_note(previews: World) -> None:
    note = (await run(previews, "up web-3000")).stderr
    assert note == (
        "preview host web-3000 is port 3000 of a box web; ports of this box are at web-3000-PORT\n"
    )
    assert (await run(previews, "up web-3000")).stderr == ""


@pytest.mark.parametrize("spec", ["web", "web-x", "web-0", "web-70000", "ws1/web-3000"])
async def test_other_names_get_no_note(previews: World, spec: str) -> None:
    assert (await run(previews, f"up {spec}")).stderr == ""


async def test_without_previews_no_name_gets_a_note(world: World) -> None:
    assert (await run(world, "up web-3000")).stderr == ""
