"""What waits for a client is bounded, and who waits for it is only who answers it."""

from __future__ import annotations

import asyncio

from boxd.mcp.messages.outbox import Outbox


async def test_texts_come_in_order() -> None:
    outbox = Outbox()
    await outbox.put("a")
    outbox.push("b")
    assert [await outbox.take(), await outbox.take()] == ["a", "b"]


async def test_one_text_may_be_larger_than_all_that_may_wait() -> None:
    outbox = Outbox(max_messages=2, max_bytes=10)
    await outbox.put("x" * 100)
    outbox.push("y")
    assert outbox.full.is_set()


async def test_what_may_not_wait_drops_a_client_without_room() -> None:
    outbox = Outbox(max_messages=2, max_bytes=100)
    outbox.push("a")
    outbox.push("b")
    assert not outbox.full.is_set()
    outbox.push("c")
    assert outbox.full.is_set()


async def test_an_answer_waits_for_room() -> None:
    outbox = Outbox(max_messages=1, max_bytes=100)
    await outbox.put("a")
    putting = asyncio.create_task(outbox.put("b"))
    assert await outbox.take() == "a"
    await putting
    assert (await outbox.take(), outbox.full.is_set()) == ("b", False)


async def test_an_answer_that_gets_no_room_drops_the_client() -> None:
    outbox = Outbox(max_messages=1, max_bytes=100, patience=0.01)
    await outbox.put("a")
    await outbox.put("b")
    assert outbox.full.is_set()
    await outbox.put("c")  # to nobody: it does not wait
    assert await outbox.take() == "a"


async def test_it_is_drained_when_the_last_one_is_sent() -> None:
    outbox = Outbox()
    sent: list[str] = []

    async def send() -> None:
        while True:
            text = await outbox.take()
            await asyncio.sleep(0)
            sent.append(text)

    sending = asyncio.create_task(send())
    for text in "abc":
        await outbox.put(text)
    await outbox.drained()
    assert sent == ["a", "b", "c"]
    sending.cancel()
