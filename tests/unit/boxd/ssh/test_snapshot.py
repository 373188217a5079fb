"""The commands for snapshots and forks, on fakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from boxd.principal import Principal
from tests.harness.console import run
from tests.harness.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from tests.harness.world import World


async def good(world: World, line: str, principal: Principal = ALICE) -> str:
    """What a command prints that does what it is told."""
    result = await run(world, line, principal)
    assert (result.status, result.stderr) == (0, "")
    return result.stdout


async def test_the_life_of_a_snapshot(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    created = sleepy.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    head = "SNAPSHOT  BOX  KIND          SIZE     CREATED\n"
    row = f"s1        web  disk, memory  2.0 MiB  {created}\n"
    assert await good(sleepy, "snapshot create web") == head + row
    assert await good(sleepy, "snapshot ls") == head + row
    assert await good(sleepy, "snapshot ls web") == head + row
    assert await good(sleepy, "snapshot ls other") == "SNAPSHOT  BOX  KIND  SIZE  CREATED\n"
    [shown] = json.loads(await good(sleepy, "snapshot ls --json"))
    assert (shown["snapshot"], shown["box"], shown["memory"]) == ("s1", "web", True)
    assert shown["size_bytes"] == 2 << 20
    result = await run(sleepy, "snapshot restore web s1")
    assert (result.status, result.stdout) == (0, "NAME  STATE\nweb   suspended\n")
    assert "its previous state is kept as snapshot pre-restore" in result.stderr
    assert await good(sleepy, "snapshot rm web s1") == "removed snapshot s1 of web\n"
    result = await run(sleepy, "snapshot rm web s1")
    assert (result.status, result.stdout) == (1, "")
    assert "no snapshot 's1' of box 'web'" in result.stderr


async def test_the_list_marks_snapshots_of_removed_boxes(sleepy: World) -> None:
    """A box that was made since under the same name is another box."""

    async def marks() -> dict[str, bool]:
        shown = json.loads(await good(sleepy, "snapshot ls web --json"))
        return {one["snapshot"]: one["box_removed"] for one in shown}

    await sleepy.operations.boxes.up(ALICE, "web")
    await good(sleepy, "snapshot create web old")
    assert await marks() == {"old": False}
    await sleepy.operations.boxes.remove(ALICE, "web")
    assert await marks() == {"old": True}
    assert "old       web (removed)  disk, memory" in await good(sleepy, "snapshot ls")
    await sleepy.operations.boxes.up(ALICE, "web")
    await good(sleepy, "snapshot create web new")
    assert await marks() == {"old": True, "new": False}


@pytest.mark.parametrize("name", ["pre-restore", "pre-restore-2"])
async def test_the_name_of_what_a_restore_keeps_is_refused(sleepy: World, name: str) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    result = await run(sleepy, f"snapshot create web {name}")
    assert result.status == 1
    assert "choose another name" in result.stderr
    assert await sleepy.store.all_snapshots() == []


async def test_forks_of_a_box_and_of_a_snapshot(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "ws1/web")
    await good(sleepy, "snapshot create ws1/web kept")
    assert "running" in await good(sleepy, "snapshot fork ws1/web 'ws1/two^2h'")
    await sleepy.operations.boxes.remove(ALICE, "ws1/web")
    shown = json.loads(await good(sleepy, "snapshot fork ws1/web@kept ws1/three --json"))
    assert (shown["ref"], shown["state"], shown["next"]["act"]) == (
        "ws1/three",
        "running",
        "suspended",
    )
    result = await run(sleepy, "snapshot fork ws1/web@kept ws1/three")
    assert (result.status, "box ws1/three exists" in result.stderr) == (1, True)


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
async def test_only_owners_in_scope_may(sleepy: World, line: str, stranger: Principal) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    await good(sleepy, "snapshot create web")
    result = await run(sleepy, line, stranger)
    assert (result.status, result.stdout) == (1, "")
    assert len(await sleepy.store.all_snapshots()) == len(await sleepy.store.all_boxes()) == 1


async def test_a_scoped_credential_sees_and_forks_in_its_workspace(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "ws1/web")
    await sleepy.operations.boxes.up(ALICE, "web")
    for ref in ("web", "ws1/web"):
        await good(sleepy, f"snapshot create {ref}")
    [shown] = json.loads(await good(sleepy, "snapshot ls --json", SCOPED))
    assert shown["box"] == "ws1/web"
    assert "ws1/two" in await good(sleepy, "snapshot fork web@s1 two", SCOPED)
    result = await run(sleepy, "snapshot fork web ws2/three", SCOPED)
    assert (result.status, "ws1" in result.stderr) == (1, True)
