"""`keep`, and what `ls` and `info` show about removals, with fakes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.principal import Principal
from tests.harness.simulation.world import ALICE, BOB, SCOPED
from tests.harness.ssh.console import run

if TYPE_CHECKING:
    from tests.harness.simulation.world import World

REAP = timedelta(hours=3)


async def removals(world: World) -> dict[str, str]:
    """Return the column REMOVAL of `ls`, by name."""
    lines = (await run(world, "ls")).stdout.splitlines()
    assert lines[0].endswith("REMOVAL")
    return {line.split()[0]: line[lines[0].index("REMOVAL") :].strip() for line in lines[1:]}


async def documents(world: World, line: str) -> list[dict[str, Any]]:
    """Return the boxes that `--json` prints; nothing else is printed."""
    result = await run(world, line + " --json")
    assert (result.status, result.stderr) == (0, "")
    boxes = json.loads(result.stdout)
    assert isinstance(boxes, list)
    return boxes


async def test_ls_shows_when_a_box_is_removed(sleepy: World) -> None:
    for line in ("up web", "up asleep", "suspend asleep", "up 'short^1h'", "up 'kept!'"):
        assert (await run(sleepy, line)).status == 0
    await run(sleepy, "up 'ends!^9h'")
    async with sleepy.operations.boxes.attach(ALICE, BoxAccess("busy", kind="spec", why="shell")):
        assert await removals(sleepy) == {
            "web": "in 3h2m",
            "asleep": "in 3h",
            "short": "in 1h",
            "kept": "durable",
            "ends": "in 9h",
            "busy": "-",
        }
    boxes = {box["name"]: box for box in await documents(sleepy, "ls")}
    now = sleepy.clock.now()
    unused = {"at": (now + REAP).isoformat(), "why": "unused"}
    assert boxes["asleep"]["removal"] == unused
    assert boxes["short"]["removal"]["why"] == "deadline"
    assert (boxes["kept"]["removal"], boxes["kept"]["durable"]) == (None, True)
    assert "removal:" in (await run(sleepy, "info asleep")).stdout


async def test_ls_says_how_to_keep_unused_boxes(sleepy: World) -> None:
    await run(sleepy, "up web")
    assert (await run(sleepy, "ls")).stderr == ""
    await run(sleepy, "suspend web")
    note = "1 unused box will be removed (column REMOVAL); to keep a box: ssh cli@host keep web\n"
    assert (await run(sleepy, "ls")).stderr == note
    await run(sleepy, "up db")
    await run(sleepy, "suspend db")
    assert (await run(sleepy, "ls --wide")).stderr == (
        "2 unused boxes will be removed (column REMOVAL); to keep a box: ssh cli@host keep NAME\n"
    )
    assert (await run(sleepy, "ls --json")).stderr == ""
    await run(sleepy, "keep web db")
    assert (await run(sleepy, "ls")).stderr == ""


async def test_a_kept_box_outlives_the_idle_time_and_its_end_gives_it_back(sleepy: World) -> None:
    await run(sleepy, "up web")
    await run(sleepy, "suspend web")
    assert (await run(sleepy, "keep web")).stdout == (
        "NAME  DURABLE  REMOVAL\nweb   yes      durable\n"
    )
    await sleepy.tick(9 * REAP)
    (box,) = await sleepy.operations.boxes.list_boxes(ALICE)
    assert box.state == "suspended"
    off = await run(sleepy, "keep --off web")
    assert (off.stdout, off.stderr) == ("NAME  DURABLE  REMOVAL\nweb   no       in 3h\n", "")
    await sleepy.tick(timedelta(hours=1))
    again = await run(sleepy, "keep --off web")  # changes nothing, so it grants no time either
    assert again.stdout.splitlines()[1].split() == ["web", "no", "in", "2h"]
    await sleepy.restart()
    await sleepy.tick(timedelta(hours=1, minutes=59))
    assert len(await sleepy.operations.boxes.list_boxes(ALICE)) == 1
    await sleepy.tick(timedelta(minutes=1))
    assert await sleepy.left_overs() == {}


async def test_a_deadline_still_ends_a_kept_box(sleepy: World) -> None:
    await run(sleepy, "up 'web^9h'")
    result = await run(sleepy, "keep web")
    assert result.stdout.splitlines()[1].split() == ["web", "yes", "in", "9h"]
    assert result.stderr == "box web will still be removed at its deadline, 2026-01-02T12:04:05Z\n"
    await sleepy.tick(timedelta(hours=9))
    assert await sleepy.left_overs() == {}


async def test_a_failure_does_not_stop_the_other_boxes(sleepy: World) -> None:
    await run(sleepy, "up web")
    await run(sleepy, "up ws1/db")
    result = await run(sleepy, "keep nothing web ws1/db")
    assert (result.status, result.stderr) == (1, "no box 'nothing'; see: ls\n")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["NAME", "web", "ws1/db"]
    boxes = await documents(sleepy, "keep --off -w ws1 db")
    assert [(box["ref"], box["durable"]) for box in boxes] == [("ws1/db", False)]
    result = await run(sleepy, "keep nothing")
    assert (result.status, result.stdout) == (1, "")


async def test_a_throwaway_box_cannot_be_kept(sleepy: World) -> None:
    async with sleepy.operations.boxes.attach(ALICE, BoxAccess("_", kind="spec", why="shell")):
        (box,) = await sleepy.operations.boxes.list_boxes(ALICE)
        for line in (f"keep {box.ref}", f"up --durable {box.ref}", f"up '{box.ref}!'"):
            result = await run(sleepy, line)
            assert (result.status, result.stdout) == (1, "")
            assert result.stderr == (
                f"box {box.ref} cannot be durable: it is removed when its last session ends. "
                f"To keep its state, copy it: snapshot fork {box.ref} NAME\n"
            )
    await sleepy.quiet()
    assert await sleepy.left_overs() == {}


async def test_a_fork_is_durable_only_by_its_own_mark(sleepy: World) -> None:
    await run(sleepy, "up 'web!'")
    await run(sleepy, "snapshot fork web copy")
    await run(sleepy, "snapshot fork web 'second!'")
    shown = {box.ref: box.durable for box in await sleepy.operations.boxes.list_boxes(ALICE)}
    assert shown == {"web": True, "copy": False, "second": True}


@pytest.mark.parametrize("line", ["keep web", "keep --off web"])
@pytest.mark.parametrize(
    "stranger", [BOB, SCOPED, Principal(ALICE.owner, None, "share"), Principal("x", None, "cookie")]
)
async def test_only_the_owner_in_scope_keeps_a_box(
    sleepy: World, line: str, stranger: Principal
) -> None:
    await sleepy.operations.boxes.up(ALICE, "web", durable="off" in line)
    result = await run(sleepy, line, stranger)
    assert (result.status, result.stdout) == (1, "")
    (box,) = await sleepy.operations.boxes.list_boxes(ALICE)
    assert box.durable is ("off" in line)
