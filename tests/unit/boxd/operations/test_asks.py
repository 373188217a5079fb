"""Questions of boxes to their owner: asked, listed, answered once, and over in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Ambiguous, BadRequest, Conflict, Forbidden, NotFound, QuotaExceeded
from boxd.operations import asks
from boxd.operations.asks import (
    LIVES,
    MAX_ANSWER,
    MAX_OF_ASKER,
    MAX_OF_WORKSPACE,
    MAX_OPEN,
    MAX_WAIT_S,
)
from boxd.principal import Principal
from tests.harness.simulation.turns import wait_turns
from tests.harness.simulation.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.simulation.world import World


KEY = Principal(ALICE.owner, None, "api_key", key_id="one")


async def ask(ops: Operations, box_id: str, question: str = "Go on?", *options: str) -> str:
    """The id of a new question."""
    params = {"question": question, "options": list(options)}
    return str((await ops.asks.request_of_box(box_id, "ask", params))["ask"])


async def state(ops: Operations, box_id: str, ask_id: str) -> tuple[object, object]:
    told = await ops.asks.request_of_box(box_id, "ask_state", {"ask": ask_id})
    return told["state"], told["answer"]


async def test_the_box_gets_the_first_answer(ops: Operations) -> None:
    box = await ops.boxes.up(ALICE, "ws1/web")
    number = await ask(ops, box.id)
    (view,) = await ops.asks.list_asks(ALICE)
    assert (view.ask.id, view.box, view.ask.workspace) == (number, "ws1/web", "ws1")
    assert await state(ops, box.id, number) == ("open", None)
    answered = await ops.asks.answer_ask(ALICE, number[:8].upper(), "as you like")
    assert answered.answer == "as you like"
    assert await state(ops, box.id, number) == ("answered", "as you like")
    assert await ops.asks.list_asks(ALICE) == []
    with pytest.raises(Conflict, match="already answered"):
        await ops.asks.answer_ask(ALICE, number, "again")
    with pytest.raises(NotFound):
        await ops.asks.answer_ask(BOB, number, "again")


async def test_options_are_what_can_be_answered(ops: Operations) -> None:
    box = await ops.boxes.up(ALICE, "web")
    number = await ask(ops, box.id, "Which?", "a", "b")
    for wrong in ("c", "", "x" * (MAX_ANSWER + 1)):
        with pytest.raises(BadRequest):
            await ops.asks.answer_ask(ALICE, number, wrong)
    await ops.asks.answer_ask(ALICE, number, "b")
    free = await ask(ops, box.id)
    with pytest.raises(BadRequest, match="NUL"):
        await ops.asks.answer_ask(ALICE, free, "a\0b")


async def test_nobody_else_sees_or_answers_one(ops: Operations) -> None:
    box, other = await ops.boxes.up(ALICE, "web"), await ops.boxes.up(ALICE, "ws1/other")
    bobs = await ops.boxes.up(BOB, "web")
    number, inside = await ask(ops, box.id), await ask(ops, other.id)
    assert await ops.asks.list_asks(BOB) == []
    assert [view.ask.id for view in await ops.asks.list_asks(SCOPED)] == [inside]
    with pytest.raises(NotFound):
        await ops.asks.answer_ask(BOB, number, "yes")
    with pytest.raises(Forbidden):
        await ops.asks.answer_ask(SCOPED, inside, "yes")
    for stranger in (bobs.id, other.id):
        with pytest.raises(NotFound):
            await state(ops, stranger, number)
    with pytest.raises(NotFound):
        await ask(ops, "0" * 32)


async def test_ids_may_be_shortened_and_not_to_nothing(world: World) -> None:
    ops = world.operations
    box = await ops.boxes.up(ALICE, "web")
    first = await ask(ops, box.id)
    stored = (await world.store.asks(ALICE.owner))[0]
    await world.store.add_ask(replace(stored, id=first[:31] + ("0" if first[31] != "0" else "1")))
    with pytest.raises(Ambiguous, match=first):
        await ops.asks.answer_ask(ALICE, first[:31], "yes")
    with pytest.raises(NotFound):
        await ops.asks.answer_ask(ALICE, "", "yes")


async def test_a_question_is_over_after_its_time_and_forgotten_later(world: World) -> None:
    ops = world.operations
    box = await ops.boxes.up(ALICE, "web", durable=True)
    number = await ask(ops, box.id)
    world.clock.turn(LIVES)
    assert await state(ops, box.id, number) == ("expired", None)
    assert await ops.asks.list_asks(ALICE) == []
    with pytest.raises(Conflict, match="expired"):
        await world.store.answer_ask(number, "late", world.clock.now())
    world.clock.turn(LIVES + timedelta(seconds=1))
    await ask(ops, box.id)
    with pytest.raises(NotFound):
        await state(ops, box.id, number)


async def test_open_ones_are_limited(ops: Operations) -> None:
    asked = [(await ops.asks.ask(ALICE, "Go on?")).id for _ in range(MAX_OPEN)]
    box = await ops.boxes.up(ALICE, "web")
    for again in (lambda: ops.asks.ask(ALICE, "One more?"), lambda: ask(ops, box.id)):
        with pytest.raises(QuotaExceeded, match=f"{MAX_OPEN} open .* per owner.*asks answer ID"):
            await again()
    await ops.asks.answer_ask(ALICE, asked[0], "yes")
    await ask(ops, box.id)


async def test_one_key_cannot_take_them_all(ops: Operations) -> None:
    box = await ops.boxes.up(ALICE, "ws1/web")
    asked = [(await ops.asks.ask(KEY, "Go on?")).id for _ in range(MAX_OF_ASKER)]
    for where in (None, box.id):
        with pytest.raises(QuotaExceeded, match=f"{MAX_OF_ASKER} open .* one API key or box"):
            await ops.asks.ask(KEY, "One more?", box=where)
    for other in (ALICE, replace(KEY, key_id="another"), replace(KEY, owner=BOB.owner)):
        await ops.asks.ask(other, "Go on?")
    await ask(ops, box.id)
    await ops.asks.answer_ask(ALICE, asked[0], "yes")
    await ops.asks.ask(KEY, "One more?")


async def test_one_box_cannot_take_them_all(ops: Operations) -> None:
    box, other = await ops.boxes.up(ALICE, "web"), await ops.boxes.up(ALICE, "other")
    for _ in range(MAX_OF_ASKER):
        await ask(ops, box.id)
    with pytest.raises(QuotaExceeded, match=f"{MAX_OF_ASKER} open .* one API key or box"):
        await ask(ops, box.id)
    await ask(ops, other.id)
    await ops.asks.ask(ALICE, "Go on?", box=box.id)


async def test_whoever_is_confined_asks_no_more_by_its_boxes(ops: Operations) -> None:
    boxes = [await ops.boxes.up(ALICE, f"ws1/box{number}") for number in range(3)]
    for _ in range(MAX_OF_ASKER):
        await ops.asks.ask(SCOPED, "Go on?")
        await ask(ops, boxes[0].id)
    for box in boxes[1:]:
        with pytest.raises(QuotaExceeded, match=f"{MAX_OF_WORKSPACE} open .* in workspace ws1"):
            await ask(ops, box.id)
    await ops.asks.ask(ALICE, "Go on?", ws="ws1")
    await ops.asks.ask(KEY, "Go on?")
    await ask(ops, (await ops.boxes.up(ALICE, "ws2/web")).id)


async def test_what_a_key_has_asked_counts_after_a_restart_and_not_when_over(world: World) -> None:
    for _ in range(MAX_OF_ASKER):
        await world.operations.asks.ask(KEY, "Go on?")
    await world.restart()
    with pytest.raises(QuotaExceeded):
        await world.operations.asks.ask(KEY, "One more?")
    world.clock.turn(LIVES)
    await world.operations.asks.ask(KEY, "One more?")


@pytest.mark.parametrize("limit", ["MAX_OPEN", "MAX_OF_ASKER"])
async def test_those_that_are_asked_at_once_are_counted_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    ops = world.operations
    box = await ops.boxes.up(ALICE, "web")
    monkeypatch.setattr(asks, limit, 3)
    wait_turns(monkeypatch, world.store, "asks", "add_ask")
    await asyncio.gather(*(ask(ops, box.id) for _ in range(9)), return_exceptions=True)
    assert len(await ops.asks.list_asks(ALICE)) == 3


async def test_of_a_box_that_is_gone_the_question_stays(ops: Operations) -> None:
    box = await ops.boxes.up(ALICE, "web")
    number = await ask(ops, box.id)
    await ops.boxes.remove(ALICE, "web")
    (view,) = await ops.asks.list_asks(ALICE)
    assert (view.ask.id, view.box) == (number, None)


async def test_a_session_asks_and_is_told_at_once(ops: Operations) -> None:
    asked = await ops.asks.ask(ALICE, "Go on?", ["yes", "no"])
    assert (asked.state, asked.to_json()) == ("open", {"id": asked.id, "state": "open"})
    (view,) = await ops.asks.list_asks(ALICE)
    assert (view.ask.id, view.box, view.ask.workspace) == (asked.id, None, None)
    assert (view.ask.question, view.ask.options) == ("Go on?", ("yes", "no"))
    await ops.asks.answer_ask(ALICE, asked.id, "no")
    told = await ops.asks.wait_ask(ALICE, asked.id[:8])
    assert told.to_json() == {"id": asked.id, "state": "answered", "answer": "no"}


async def test_a_session_waits_for_its_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = world.operations
    wait_turns(monkeypatch, world.store, "asks", "add_ask", "answer_ask")
    with ops.visits.changes(ALICE) as heard:
        waiting = asyncio.create_task(ops.asks.ask(ALICE, "Go on?", wait_s=MAX_WAIT_S))
        await heard.next()
        other = await ops.asks.ask(ALICE, "Another?")
        await ops.asks.answer_ask(ALICE, other.id, "of the other")
        (view,) = await ops.asks.list_asks(ALICE)
        assert not waiting.done()
        await ops.asks.answer_ask(ALICE, view.ask.id, "yes")
    assert (await waiting).answer == "yes"


async def test_a_wait_ends_in_time_and_goes_on_later(ops: Operations) -> None:
    asked = await ops.asks.ask(ALICE, "Go on?", wait_s=0.01)
    assert asked.state == "open"
    waiting = asyncio.create_task(ops.asks.wait_ask(ALICE, asked.id, MAX_WAIT_S))
    await asyncio.sleep(0)
    await ops.asks.answer_ask(ALICE, asked.id, "yes")
    assert (await waiting).answer == "yes"


async def test_one_that_is_over_is_not_waited_for(world: World) -> None:
    ops = world.operations
    asked = await ops.asks.ask(ALICE, "Go on?")
    world.clock.turn(LIVES)
    assert (await ops.asks.wait_ask(ALICE, asked.id, MAX_WAIT_S)).to_json() == {
        "id": asked.id,
        "state": "expired",
    }
    with pytest.raises(Conflict, match="already expired"):
        await ops.asks.answer_ask(ALICE, asked.id, "late")


async def test_a_session_asks_for_a_box_that_it_may_see(ops: Operations) -> None:
    await ops.boxes.up(ALICE, "web")
    await ops.boxes.up(ALICE, "ws1/web")
    await ops.asks.ask(ALICE, "Of web?", box="web")
    await ops.asks.ask(SCOPED, "Inside?", box="web")
    found = [(view.ask.question, view.box) for view in await ops.asks.list_asks(ALICE)]
    assert sorted(found) == [("Inside?", "ws1/web"), ("Of web?", "web")]
    (inside,) = await ops.asks.list_asks(SCOPED)
    assert inside.ask.workspace == "ws1"
    for p, box in ((BOB, "web"), (ALICE, "absent")):
        with pytest.raises(NotFound):
            await ops.asks.ask(p, "?", box=box)
    with pytest.raises(Forbidden):
        await ops.asks.ask(SCOPED, "?", box="ws2/web")


async def test_a_confined_session_asks_and_waits_and_answers_nothing(ops: Operations) -> None:
    asked = await ops.asks.ask(SCOPED, "Go on?")
    foreign = await ops.asks.ask(ALICE, "Secret?")
    with pytest.raises(Forbidden):
        await ops.asks.answer_ask(SCOPED, asked.id, "yes")
    for who, number in ((SCOPED, foreign.id), (BOB, foreign.id), (BOB, asked.id)):
        with pytest.raises(NotFound):
            await ops.asks.wait_ask(who, number)
    waiting = asyncio.create_task(ops.asks.wait_ask(SCOPED, asked.id, MAX_WAIT_S))
    await asyncio.sleep(0)
    await ops.asks.answer_ask(ALICE, asked.id, "yes")
    assert (await waiting).answer == "yes"


async def test_questions_of_sessions_are_checked(ops: Operations) -> None:
    for question, options in (
        ("", []),
        ("x" * 2001, []),
        ("a\0b", []),
        ("\ud800", []),
        ("?", [""]),
        ("?", ["x"] * 21),
    ):
        with pytest.raises(BadRequest):
            await ops.asks.ask(ALICE, question, options)
    for wait_s in (-1, MAX_WAIT_S + 1):
        with pytest.raises(BadRequest):
            await ops.asks.ask(ALICE, "?", wait_s=wait_s)
    with pytest.raises(Forbidden):
        await ops.asks.ask(Principal(ALICE.owner, None, "share"), "?")
    assert await ops.asks.list_asks(ALICE) == []
