"""The commands for snapshots and forks, with fakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from boxd.principal import Principal
from tests.harness.simulation.world import ALICE, BOB, SCOPED
from tests.harness.ssh.console import run

if TYPE_CHECKING:
    from tests.harness.simulation.world import World


async def succeed(world: World, line: str, principal: Principal = ALICE) -> str:
    """Run a command that must succeed, and return its output."""
    result = await run(world, line, principal)
    assert (result.status, result.stderr) == (0, "")
    return result.stdout


async def test_create_list_restore_and_remove_a_snapshot(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    created = sleepy.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    head = "SNAPSHOT  BOX  KIND          SIZE     CREATED\n"
    row = f"s1        web  disk, memory  2.0 MiB  {created}\n"
    assert await succeed(sleepy, "snapshot create web") == head + row
    assert await succeed(sleepy, "snapshot ls") == head + row
    assert await succeed(sleepy, "snapshot ls web") == head + row
    assert await succeed(sleepy, "snapshot ls other") == "SNAPSHOT  BOX  KIND  SIZE  CREATED\n"
    [snapshot] = json.loads(await succeed(sleepy, "snapshot ls --json"))
    assert (snapshot["snapshot"], snapshot["box"], snapshot["memory"]) == ("s1", "web", True)
    assert snapshot["size_bytes"] == 2 << 20
    result = await run(sleepy, "snapshot restore web s1")
    assert (result.status, result.stdout) == (0, "NAME  STATE\nweb   suspended\n")
    assert "its previous state is kept as snapshot pre-restore" in result.stderr
    assert await succeed(sleepy, "snapshot rm web s1") == "removed snapshot s1 of web\n"
    result = await run(sleepy, "snapshot rm web s1")
    assert (result.status, result.stdout) == (1, "")
    assert "no snapshot 's1' of box 'web'" in result.stderr


async def test_the_list_marks_snapshots_of_removed_boxes(sleepy: World) -> None:
    """A later box with the same name is a different box."""

    async def removed_marks() -> dict[str, bool]:
        snapshots = json.loads(await succeed(sleepy, "snapshot ls web --json"))
        return {entry["snapshot"]: entry["box_removed"] for entry in snapshots}

    await sleepy.operations.boxes.up(ALICE, "web")
    await succeed(sleepy, "snapshot create web old")
    assert await removed_marks() == {"old": False}
    await sleepy.operations.boxes.remove(ALICE, "web")
    assert await removed_marks() == {"old": True}
    assert "old       web (removed)  disk, memory" in await succeed(sleepy, "snapshot ls")
    await sleepy.operations.boxes.up(ALICE, "web")
    await succeed(sleepy, "snapshot create web new")
    assert await removed_marks() == {"old": True, "new": False}


@pytest.mark.parametrize("name", ["pre-restore", "pre-restore-2"])
async def test_names_reserved_for_restores_are_rejected(sleepy: World, name: str) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    result = await run(sleepy, f"snapshot create web {name}")
    assert result.status == 1
    assert "choose another name" in result.stderr
    assert await sleepy.store.all_snapshots() == []


async def test_forks_of_a_box_and_of_a_snapshot(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "ws1/web")
    await succeed(sleepy, "snapshot create ws1/web base")
    assert "running" in await succeed(sleepy, "snapshot fork ws1/web 'ws1/two^2h'")
    await sleepy.operations.boxes.remove(ALICE, "ws1/web")
    fork = json.loads(await succeed(sleepy, "snapshot fork ws1/web@base ws1/three --json"))
    assert (fork["ref"], fork["state"], fork["next"]["act"]) == (
        "ws1/three",
        "running",
        "suspended",
    )
    result = await run(sleepy, "snapshot fork ws1/web@base ws1/three")
    assert (result.status, "box ws1/three already exists" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "line",
    [
        "snapshot create web",
        "snapshot restore web s1",
        "snapshot rm web s1",
        "snapshot fork web two",
        "snapshot fork web@s1 two",
    ],
)
@pytest.mark.parametrize(
    "stranger", [BOB, SCOPED, Principal(ALICE.owner, None, "share"), Principal("x", None, "cookie")]
)
async def test_only_the_owner_in_scope_has_access(
    sleepy: World, line: str, stranger: Principal
) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    await succeed(sleepy, "snapshot create web")
    result = await run(sleepy, line, stranger)
    assert (result.status, result.stdout) == (1, "")
    assert len(await sleepy.store.all_snapshots()) == len(await sleepy.store.all_boxes()) == 1


async def test_a_scoped_credential_lists_and_forks_in_its_workspace(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "ws1/web")
    await sleepy.operations.boxes.up(ALICE, "web")
    for ref in ("web", "ws1/web"):
        await succeed(sleepy, f"snapshot create {ref}")
    [snapshot] = json.loads(await succeed(sleepy, "snapshot ls --json", SCOPED))
    assert snapshot["box"] == "ws1/web"
    assert "ws1/two" in await succeed(sleepy, "snapshot fork web@s1 two", SCOPED)
    result = await run(sleepy, "snapshot fork web ws2/three", SCOPED)
    assert (result.status, "ws1" in result.stderr) == (1, True)
