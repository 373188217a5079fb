"""Questions of boxes to their owner: asked, listed, answered once, and over in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Ambiguous, BadRequest, Conflict, Forbidden, NotFound, QuotaExceeded
from boxd.operations import asks
from boxd.operations.asks import LIVES, MAX_ANSWER, MAX_OPEN
from tests.harness.turns import wait_turns
from tests.harness.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.world import World


async def ask(ops: Operations, box_id: str, question: str = "Go on?", *options: str) -> str:
    """The id of a new question."""
    params = {"question": question, "options": list(options)}
    return str((await ops.request_of_box(box_id, "ask", params))["ask"])


async def state(ops: Operations, box_id: str, ask_id: str) -> tuple[object, object]:
    told = await ops.request_of_box(box_id, "ask_state", {"ask": ask_id})
    return told["state"], told["answer"]


async def test_the_box_gets_the_first_answer(ops: Operations) -> None:
    box = await ops.up(ALICE, "ws1/web")
    number = await ask(ops, box.id)
    (view,) = await ops.list_asks(ALICE)
    assert (view.ask.id, view.box, view.ask.workspace) == (number, "ws1/web", "ws1")
    assert await state(ops, box.id, number) == ("open", None)
    answered = await ops.answer_ask(ALICE, number[:8].upper(), "as you like")
    assert answered.answer == "as you like"
    assert await state(ops, box.id, number) == ("answered", "as you like")
    assert await ops.list_asks(ALICE) == []
    with pytest.raises(NotFound):
        await ops.answer_ask(ALICE, number, "again")


async def test_options_are_what_can_be_answered(ops: Operations) -> None:
    box = await ops.up(ALICE, "web")
    number = await ask(ops, box.id, "Which?", "a", "b")
    for wrong in ("c", "", "x" * (MAX_ANSWER + 1)):
        with pytest.raises(BadRequest):
            await ops.answer_ask(ALICE, number, wrong)
    await ops.answer_ask(ALICE, number, "b")
    free = await ask(ops, box.id)
    with pytest.raises(BadRequest, match="NUL"):
        await ops.answer_ask(ALICE, free, "a\0b")


async def test_nobody_else_sees_or_answers_one(ops: Operations) -> None:
    box, other = await ops.up(ALICE, "web"), await ops.up(ALICE, "ws1/other")
    bobs = await ops.up(BOB, "web")
    number, inside = await ask(ops, box.id), await ask(ops, other.id)
    assert await ops.list_asks(BOB) == []
    assert [view.ask.id for view in await ops.list_asks(SCOPED)] == [inside]
    with pytest.raises(NotFound):
        await ops.answer_ask(BOB, number, "yes")
    with pytest.raises(Forbidden):
        await ops.answer_ask(SCOPED, inside, "yes")
    for stranger in (bobs.id, other.id):
        with pytest.raises(NotFound):
            await state(ops, stranger, number)
    with pytest.raises(NotFound):
        await ask(ops, "0" * 32)


async def test_ids_may_be_shortened_and_not_to_nothing(world: World) -> None:
    ops = world.operations
    box = await ops.up(ALICE, "web")
    first = await ask(ops, box.id)
    stored = (await world.store.asks(ALICE.owner))[0]
    await world.store.add_ask(replace(stored, id=first[:31] + ("0" if first[31] != "0" else "1")))
    with pytest.raises(Ambiguous, match=first):
        await ops.answer_ask(ALICE, first[:31], "yes")
    with pytest.raises(NotFound):
        await ops.answer_ask(ALICE, "", "yes")


async def test_a_question_is_over_after_its_time_and_forgotten_later(world: World) -> None:
    ops = world.operations
    box = await ops.up(ALICE, "web", durable=True)
    number = await ask(ops, box.id)
    world.clock.turn(LIVES)
    assert await state(ops, box.id, number) == ("expired", None)
    assert await ops.list_asks(ALICE) == []
    with pytest.raises(Conflict, match="expired"):
        await world.store.answer_ask(number, "late", world.clock.now())
    world.clock.turn(LIVES + timedelta(seconds=1))
    await ask(ops, box.id)
    with pytest.raises(NotFound):
        await state(ops, box.id, number)


async def test_open_ones_are_limited(ops: Operations) -> None:
    box = await ops.up(ALICE, "web")
    asked = [await ask(ops, box.id) for _ in range(MAX_OPEN)]
    with pytest.raises(QuotaExceeded, match=str(MAX_OPEN)):
        await ask(ops, box.id)
    await ops.answer_ask(ALICE, asked[0], "yes")
    await ask(ops, box.id)


async def test_those_that_are_asked_at_once_are_counted_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = world.operations
    box = await ops.up(ALICE, "web")
    monkeypatch.setattr(asks, "MAX_OPEN", 3)
    wait_turns(monkeypatch, world.store, "asks", "add_ask")
    await asyncio.gather(*(ask(ops, box.id) for _ in range(9)), return_exceptions=True)
    assert len(await ops.list_asks(ALICE)) == 3


async def test_of_a_box_that_is_gone_the_question_stays(ops: Operations) -> None:
    box = await ops.up(ALICE, "web")
    number = await ask(ops, box.id)
    await ops.remove(ALICE, "web")
    (view,) = await ops.list_asks(ALICE)
    assert (view.ask.id, view.box) == (number, None)
