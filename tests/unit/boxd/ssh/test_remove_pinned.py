"""Pins protect boxes from removal, by the CLI and by operations; with fakes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.harness.simulation.world import ALICE
from tests.harness.ssh.console import Typed, run

if TYPE_CHECKING:
    from tests.harness.simulation.world import World

FACT = "box web is pinned until 2026-01-02 05:04 UTC (nightly build)"


async def _create_pinned(world: World) -> None:
    await world.operations.boxes.up(ALICE, "web")
    await world.operations.boxes.pin(ALICE, "web", span=timedelta(hours=2), why="nightly build")


async def _box_refs(world: World) -> list[str]:
    return [box.ref for box in await world.store.boxes(ALICE.owner)]


async def test_rm_rejects_a_pinned_box_and_removes_the_others(world: World) -> None:
    await _create_pinned(world)
    await world.operations.boxes.up(ALICE, "db")
    result = await run(world, "rm web db")
    assert (result.status, result.stdout.split()[:2]) == (1, ["removed", "db"])
    remedy = "To remove it: rm --force web. To remove the pin: unpin web"
    assert result.stderr == f"{FACT}. {remedy}\n"
    assert await _box_refs(world) == ["web"]


async def test_rm_with_force_removes_a_pinned_box(world: World) -> None:
    await _create_pinned(world)
    assert (await run(world, "rm --force web")).status == 0
    assert await _box_refs(world) == []


@pytest.mark.parametrize(
    ("typed", "removed"),
    [
        (b"y\r", True),
        (b"Yes\r", True),
        (b"x\x7fy\r", True),
        (b"\r", False),
        (b"n\r", False),
        (b"yeah\r", False),
    ],
)
async def test_rm_asks_for_confirmation_at_a_terminal(
    world: World, typed: bytes, removed: bool
) -> None:
    await _create_pinned(world)
    keys = Typed([typed[number : number + 1] for number in range(len(typed))], terminal=True)
    result = await run(world, "rm web", stdio=keys)
    assert keys.written.startswith(f"{FACT}. Remove it? [y/N] ".encode())
    assert (await _box_refs(world) == []) is removed
    assert result.status == (0 if removed else 1)
    if not removed:
        assert result.stderr == f"{FACT}. It was not removed\n"


async def test_rm_asks_neither_with_json_nor_for_a_box_without_a_pin(world: World) -> None:
    """With `--json`, a question would corrupt the output."""
    await _create_pinned(world)
    keys = Typed([b"y\r"], terminal=True)
    assert (await run(world, "rm web --json", stdio=keys)).status == 1
    await world.operations.boxes.unpin(ALICE, "web")
    assert (await run(world, "rm web", stdio=keys)).status == 0
    assert keys.written == b""


@pytest.mark.parametrize(
    ("typed", "message"), [([b"y\x03"], "interrupted"), ([b"y"], "the input ended before Enter")]
)
async def test_an_unanswered_question_removes_nothing(
    world: World, typed: list[bytes], message: str
) -> None:
    """The user presses Ctrl-C, or the client disconnects."""
    await _create_pinned(world)
    result = await run(world, "rm web", stdio=Typed(typed, terminal=True))
    assert f"{message}: the box is unchanged" in result.stderr
    assert await _box_refs(world) == ["web"]


async def test_an_expired_pin_does_not_protect(world: World) -> None:
    await _create_pinned(world)
    world.clock.turn(timedelta(hours=2))
    await world.operations.boxes.remove(ALICE, "web")
    assert await _box_refs(world) == []


@pytest.mark.parametrize("line", ["up web+", "snapshot fork base web+"])
async def test_a_pinned_box_is_not_replaced(sleepy: World, line: str) -> None:
    await sleepy.operations.boxes.up(ALICE, "base")
    await _create_pinned(sleepy)
    boxes = await sleepy.store.boxes(ALICE.owner)
    result = await run(sleepy, line)
    assert result.status == 1
    remedy = "The box was not removed. Remove the pin first: unpin web"
    assert result.stderr == f"{FACT}. {remedy}\n"
    assert await sleepy.store.boxes(ALICE.owner) == boxes
    await sleepy.operations.boxes.unpin(ALICE, "web")
    assert (await run(sleepy, line)).status == 0


async def test_a_workspace_is_removed_with_its_pinned_boxes(world: World) -> None:
    """`--force` of the workspace covers its boxes."""
    await world.operations.boxes.up(ALICE, "ws1/web")
    await world.operations.boxes.pin(ALICE, "ws1/web", span=timedelta(hours=2))
    assert (await run(world, "ws rm ws1 --force")).status == 0
    assert await _box_refs(world) == []
