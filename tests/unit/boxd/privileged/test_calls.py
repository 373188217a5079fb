"""Answers, errors and cancellations pass from one process to the other."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from boxd import errors
from boxd.backends.interface import BackendBox
from boxd.errors import BoxdError, Conflict, InvalidShare, Pinned, Unavailable
from boxd.privileged import calls, channel, messages, server
from boxd.privileged.client import LOST, Client
from boxd.privileged.handlers import HANDLERS, Descriptors
from boxd.privileged.server import Server
from tests.harness.logs import provoked
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.privileged.calls import Call
    from boxd.privileged.local import LocalHost

ID = "0123456789abcdef" * 2


class Pair:
    """A client and a server whose handlers a test sets."""

    def __init__(self) -> None:
        self.handlers: dict[type[Call], Any] = {}
        self.steps: list[str] = []
        self.lost: list[bool] = []
        self.mine, theirs = channel.pair()
        self.client = Client(
            self.mine, on_step=self.steps.append, on_lost=lambda: self.lost.append(True)
        )
        self.server = Server(cast("LocalHost", None), theirs, self.handlers)
        self.running = asyncio.create_task(self.server.run())


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A connected pair."""
    made = Pair()
    yield made
    made.client.close()
    await made.running


async def test_an_answer_has_its_type(pair: Pair) -> None:
    boxes = [BackendBox(ID, running=True), BackendBox(ID, running=False, memory=True)]
    pair.handlers[calls.ListBoxes] = lambda *_: answer(boxes)
    assert await pair.client.ask(calls.ListBoxes(), list[BackendBox]) == boxes


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(errors).values() if isinstance(kind, type)], ids=str
)
async def test_an_error_keeps_its_class_and_text(pair: Pair, kind: type[BoxdError]) -> None:
    error = kind() if kind is InvalidShare else kind("in the way: `x`")
    pair.handlers[calls.Destroy] = lambda *_: fail(error)
    with pytest.raises(kind) as raised:
        await pair.client.do(calls.Destroy(ID))
    assert type(raised.value) is kind
    assert str(raised.value) == str(error)


async def test_a_text_of_two_parts_stays_whole(pair: Pair) -> None:
    pair.handlers[calls.Destroy] = lambda *_: fail(Pinned("it is pinned", "unpin it"))
    with pytest.raises(Conflict, match=r"^it is pinned\. unpin it$"):
        await pair.client.do(calls.Destroy(ID))


async def test_an_error_of_the_system_keeps_its_number(pair: Pair) -> None:
    pair.handlers[calls.Bind] = lambda *_: fail(FileNotFoundError(2, "No such file", "/secret"))
    with pytest.raises(FileNotFoundError) as raised:
        await pair.client.fetch(calls.Bind(ID))
    assert "/secret" not in str(raised.value)


async def test_an_unexpected_error_tells_nothing(pair: Pair) -> None:
    pair.handlers[calls.Destroy] = lambda *_: fail(KeyError("password"))
    with (
        provoked("boxd.privileged.server"),
        pytest.raises(Unavailable, match=r"^an internal error in the part") as raised,
    ):
        await pair.client.do(calls.Destroy(ID))
    assert "password" not in str(raised.value)


async def test_an_error_without_a_number_is_an_internal_one(pair: Pair) -> None:
    pair.handlers[calls.Destroy] = lambda *_: fail(TimeoutError())
    with provoked("boxd.privileged.server"), pytest.raises(Unavailable, match="internal error"):
        await pair.client.do(calls.Destroy(ID))


async def test_descriptors_travel_both_ways(pair: Pair) -> None:
    reader, writer = os.pipe()

    async def sanitise(_host: None, _call: Call, received: list[int]) -> int:
        os.write(received[1], b"written")
        return 3

    pair.handlers[calls.Sanitise] = sanitise
    pair.handlers[calls.Bind] = lambda *_: answer(Descriptors([os.dup(reader)]))
    assert await pair.client.ask(calls.Sanitise(), int, (reader, writer)) == 3
    (copy,) = await pair.client.fetch(calls.Bind(ID))
    assert os.read(copy, 10) == b"written"
    for descriptor in (reader, writer, copy):
        os.close(descriptor)


async def test_a_cancelled_call_has_ended_before_its_caller_goes_on(pair: Pair) -> None:
    undone = asyncio.Event()
    started = asyncio.Event()

    async def start(*_: object) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            undone.set()

    pair.handlers[calls.Start] = start
    task = asyncio.create_task(pair.client.do(calls.Start(ID)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone.is_set()


async def test_a_call_may_be_cancelled_before_it_begins(pair: Pair) -> None:
    pair.handlers[calls.Start] = lambda *_: answer(None)
    task = asyncio.create_task(pair.client.do(calls.Start(ID)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pair.handlers[calls.Identity] = lambda *_: answer("x")
    assert await pair.client.ask(calls.Identity(), str) == "x"


async def test_the_result_of_a_cancelled_call_is_closed(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    started = asyncio.Event()

    async def bind(*_: object) -> Descriptors:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Descriptors([os.dup(0)])
        return Descriptors()

    pair.handlers[calls.Bind] = bind
    task = asyncio.create_task(pair.client.fetch(calls.Bind(ID)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(os.listdir("/proc/self/fd")) == before


async def test_calls_fail_when_the_other_process_ends(pair: Pair) -> None:
    started = asyncio.Event()

    async def start(*_: object) -> None:
        started.set()
        await asyncio.Event().wait()

    pair.handlers[calls.Start] = start
    task = asyncio.create_task(pair.client.do(calls.Start(ID)))
    await started.wait()
    pair.running.cancel()
    with pytest.raises(Unavailable, match=LOST):
        await task
    assert pair.lost == [True]
    with pytest.raises(Unavailable, match=LOST):
        await pair.client.do(calls.Start(ID))
    pair.running = asyncio.create_task(asyncio.sleep(0))


async def test_calls_end_with_their_front(pair: Pair) -> None:
    ended = asyncio.Event()
    started = asyncio.Event()

    async def start(*_: object) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    pair.handlers[calls.Start] = start
    task = asyncio.create_task(pair.client.do(calls.Start(ID)))
    await started.wait()
    pair.client.close()
    await pair.running
    assert ended.is_set()
    with pytest.raises(Unavailable):
        await task


async def test_more_calls_than_allowed_wait(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CALLS_MAX", 3)
    most, present = 0, 0

    async def start(*_: object) -> None:
        nonlocal most, present
        present += 1
        most = max(most, present)
        await asyncio.sleep(0.005)
        present -= 1

    pair.handlers[calls.Start] = start
    await asyncio.gather(*(pair.client.do(calls.Start(ID)) for _ in range(20)))
    assert most == 3


async def test_many_calls_at_once_all_get_their_answer(pair: Pair) -> None:
    pair.handlers[calls.AdminKeys] = lambda *_: answer(bytes(4000))
    keys = await asyncio.gather(*(pair.client.ask(calls.AdminKeys(), bytes) for _ in range(3000)))
    assert set(keys) == {bytes(4000)}


async def test_an_answer_that_cannot_be_sent_is_an_error(pair: Pair) -> None:
    pair.handlers[calls.MountHealth] = lambda *_: answer({"size": 1 << 70})
    with provoked("boxd.privileged.server"), pytest.raises(Unavailable, match="internal error"):
        await pair.client.ask(calls.MountHealth(ID), dict[str, object])
    pair.handlers[calls.Destroy] = lambda *_: fail(Conflict("/wrk/\udcff is in use"))
    with pytest.raises(Conflict, match=r"/wrk/\? is in use"):
        await pair.client.do(calls.Destroy(ID))


async def test_a_call_is_cancelled_once(pair: Pair) -> None:
    cleaned = asyncio.Event()
    started = asyncio.Event()

    async def start(*_: object) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()

    pair.handlers[calls.Start] = start
    task = asyncio.create_task(pair.client.do(calls.Start(ID)))
    await started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.005)
    pair.client.close()  # the end of the front cancels as well
    with pytest.raises((asyncio.CancelledError, Unavailable)):
        await task
    await pair.running
    assert cleaned.is_set()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["call", 1, ["Reboot"]]),
        msgspec.msgpack.encode(["call", 1, ["Start", "../../etc"]]),
        msgspec.msgpack.encode(["call", 1, ["Start", ID, "more"]]),
        msgspec.msgpack.encode(["call", -1, ["Start", ID]]),
        msgspec.msgpack.encode(["call", 1, ["AttachDrive", ID, "/etc"]]),
        msgspec.msgpack.encode(["call", 1, ["Sanitise"]]),  # without its descriptors
        msgspec.msgpack.encode(["answer", 1, None]),
        b"\x91" * 100_000,
    ],
)
async def test_a_message_of_another_form_ends_the_connection(pair: Pair, message: bytes) -> None:
    pair.handlers[calls.Start] = lambda *_: answer(None)
    with provoked("boxd.privileged.server"):
        pair.mine.send(channel.LAST + message[:30_000])
        if len(message) > 30_000:
            pair.mine.send(channel.LAST + message)
        await pair.running
    await until(lambda: pair.lost == [True])


def test_every_call_has_a_handler() -> None:
    assert set(calls.CALLS) == set(HANDLERS)


@pytest.mark.parametrize("kind", calls.CALLS)
def test_no_call_has_a_path(kind: type[Call]) -> None:
    fields = {field.name for field in msgspec.structs.fields(kind)}
    assert not {name for name in fields if "path" in name or "dir" in name or "source" in name}


def test_the_text_of_an_unknown_error_is_kept() -> None:
    error = messages.error_of(messages.Failure(1, "NewKind", "what happened"))
    assert isinstance(error, Unavailable)
    assert str(error) == "what happened"


async def answer(value: object) -> object:
    """Return a value."""
    return value


async def fail(error: Exception) -> None:
    """Raise an error."""
    raise error
