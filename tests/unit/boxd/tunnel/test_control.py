"""The daemon's end of the control channel: what a box says is checked, bounded and slowed down."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from box_guest import protocol
from boxd.errors import Conflict, Unavailable
from boxd.tunnel import control
from boxd.tunnel.control import MAX_SHELLS, ControlChannel
from tests.harness.wait import until

if TYPE_CHECKING:
    import asyncssh

    from boxd.model.presence import Presence
    from tests.plugins.strict_logs import AssertLogs

HELLO = {"type": "hello", "version": 1, "boot": "x", "generation": 1, "forward_dir": "/run/f"}


class Daemon:
    """Answers requests and keeps what it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.shells: list[int] = []
        self.commands: list[int] = []
        self.faults: list[str] = []
        self.answer: dict[str, Any] | Exception = {}

    async def request(self, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        """Gives `answer`."""
        self.asked.append((verb, params))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def activity(self, presence: Presence) -> None:
        """Keeps it."""
        self.shells.append(presence.shells)
        self.commands.append(presence.commands)

    def misbehaved(self, reason: str) -> None:
        """Keeps it."""
        self.faults.append(reason)


class Wire:
    """An SSH channel that keeps what is written, with the control channel behind it."""

    def __init__(self, *, greeted: bool = True) -> None:
        self.daemon = Daemon()
        self.channel = ControlChannel(self.daemon)
        self.channel.connection_made(cast("asyncssh.SSHClientChannel[bytes]", self))
        self.sent: list[dict[str, Any]] = []
        if greeted:
            self.say(HELLO)

    def say(self, *messages: dict[str, Any]) -> None:
        """The box says something."""
        self.channel.data_received(b"".join(map(protocol.encode, messages)), None)

    def write(self, data: bytes) -> None:
        """The daemon says something."""
        self.sent.append(json.loads(data))

    def is_closing(self) -> bool:
        """Never."""
        return False


async def test_requests_are_passed_on_with_their_parameters() -> None:
    wire = Wire()
    wire.daemon.answer = {"pinned_until": "tomorrow"}
    wire.say({"type": "pin", "id": 5, "for_s": 60, "why": "tests", "owner": "somebody"})
    await until(lambda: bool(wire.sent))
    assert wire.daemon.asked == [("pin", {"for_s": 60, "why": "tests"})]
    assert wire.sent == [
        {"type": "reply", "id": 5, "ok": True, "result": {"pinned_until": "tomorrow"}}
    ]


async def test_refusals_and_failures_are_answered(assert_logs: AssertLogs) -> None:
    wire = Wire()
    failures = [
        (Conflict("the box is confidential"), "the box is confidential"),
        (Conflict("😀" * 9000), "😀" * control.MAX_ERROR),
        (OSError("/secret/path"), "the service failed; its log says why"),
    ]
    with assert_logs("a request of a box failed"):
        for error, text in failures:
            wire.daemon.answer = error
            wire.sent.clear()
            wire.say({"type": "unpin", "id": 1})
            await until(lambda: bool(wire.sent))
            assert wire.sent == [{"type": "reply", "id": 1, "ok": False, "error": text}]


async def test_an_answer_that_fits_no_line_is_a_failure(assert_logs: AssertLogs) -> None:
    wire = Wire()
    wire.daemon.answer = {"text": "x" * protocol.MAX_LINE}
    with assert_logs("a request of a box failed"):
        wire.say({"type": "life", "id": 1})
        await until(lambda: bool(wire.sent))
        assert wire.sent[0]["ok"] is False


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        {"type": "pin", "id": 1, "for_s": 0, "why": ""},
        {"type": "pin", "id": "1", "for_s": 60, "why": ""},
        {"type": "pin", "id": True, "for_s": 60, "why": ""},
        {"type": "unpin"},
        {"type": "workspace", "id": 1, "verb": "format"},
        {"type": "reply"},
        {"type": "activity"},
        *({"type": "activity", "shells": wrong} for wrong in ("1", 1.0, True, None, [1])),
        *({"type": "activity", "shells": 1, "commands": wrong} for wrong in ("1", 1.0, True, None)),
    ],
    ids=str,
)
async def test_malformed_messages_are_misbehaviour(message: dict[str, Any]) -> None:
    wire = Wire()
    wire.say(message)
    assert len(wire.daemon.faults) == 1
    assert wire.daemon.asked == []
    assert wire.daemon.shells == []


async def test_nothing_counts_before_hello() -> None:
    wire = Wire(greeted=False)
    wire.say({"type": "activity", "shells": 1})
    assert wire.daemon.faults == ["the first message is not hello"]
    assert wire.daemon.shells == []


@pytest.mark.parametrize(("told", "kept"), [(-1, 0), (-(10**40), 0), (3, 3), (10**40, MAX_SHELLS)])
async def test_activity_is_clamped(told: int, kept: int) -> None:
    wire = Wire()
    wire.say({"type": "activity", "shells": told, "commands": told})
    assert wire.daemon.shells == wire.daemon.commands == [kept]
    assert wire.daemon.faults == []


async def test_activity_is_told_slowly_and_ends_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ACTIVITY_S", 0.05)
    wire = Wire()
    for number in range(50):
        wire.say({"type": "activity", "shells": number})
    assert wire.daemon.shells == [0]
    await until(lambda: wire.daemon.shells == [0, 49])
    wire.say({"type": "activity", "shells": 2})
    wire.say({"type": "activity", "shells": 4})
    await until(lambda: wire.daemon.shells[-1] == 4)


async def test_too_many_lines_are_misbehaviour_once() -> None:
    wire = Wire()
    for number in range(1000):
        wire.say({"type": "reply", "id": number})
    assert wire.daemon.faults == ["too many lines in a second"]
    assert wire.daemon.asked == []


async def test_nothing_is_told_of_a_channel_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ACTIVITY_S", 0.01)
    wire = Wire()
    wire.say({"type": "activity", "shells": 1}, {"type": "activity", "shells": 2})
    wire.channel.connection_lost(None)
    await asyncio.sleep(0.05)
    assert wire.daemon.shells == [1]


async def test_the_agent_is_asked_and_answers() -> None:
    wire = Wire()
    first = asyncio.create_task(wire.channel.request("suspend_soon"))
    second = asyncio.create_task(wire.channel.request("suspend_soon"))
    await until(lambda: len(wire.sent) == 2)
    numbers = [message["id"] for message in wire.sent]
    wire.say({"type": "reply", "id": numbers[1], "ok": True, "result": {"shells": 1}})
    wire.say({"type": "reply", "id": numbers[0], "ok": False, "error": "no"})
    assert await second == {"shells": 1}
    with pytest.raises(Unavailable, match="rejected the request"):
        await first
    # Once more, and to a question that nobody asked.
    wire.say({"type": "reply", "id": numbers[1], "ok": True, "result": {}})
    wire.say({"type": "reply", "id": 77, "ok": True, "result": {}})
    assert wire.daemon.faults == []


async def test_questions_end_with_the_channel() -> None:
    wire = Wire()
    asking = asyncio.create_task(wire.channel.request("suspend_soon"))
    await until(lambda: bool(wire.sent))
    wire.channel.connection_lost(None)
    with pytest.raises(Unavailable):
        await asking
    with pytest.raises(Unavailable):
        await wire.channel.request("suspend_soon")
