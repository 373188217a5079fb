"""The daemon's end of a tunnel's control channel: hello, requests of the box, messages to it.

Everything that arrives here was written by a box and is hostile until checked.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import asyncssh

from box_guest import protocol
from boxd.errors import BoxdError, Unavailable
from boxd.model.presence import Presence
from boxd.tasks import BackgroundTasks
from boxd.tunnel.limits import REQUESTS, Bucket

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_REQUESTS = 8
"""Maximum number of requests of a box that may be in flight."""
MAX_TEXT = 256
"""Maximum length of a text in a hello, in characters."""
MAX_ERROR = 4000
"""Maximum length of an answer's error text, in characters: the answer must fit into one line."""
MAX_SHELLS = 999
"""Maximum number of detached shells, and of background commands, that a box can report; higher
numbers are capped."""
ACTIVITY_S = 1.0
"""Seconds between two reports of a box's activity. If changes are faster, a report has only the
last one."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of an agent. `boot` changes with each start of the agent."""

    version: int
    boot: str
    generation: int
    forward_dir: str


class Tunnelled(Protocol):
    """Handles the requests and events of the box at the other end."""

    async def request(self, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of `protocol.REQUESTS`.

        The requester sees the text of a BoxdError.
        """

    def activity(self, presence: Presence) -> None:
        """Handle a report of the box; the numbers are 0 to MAX_SHELLS."""

    def misbehaved(self, reason: str) -> None:
        """Handle a violation of the protocol or a limit by the agent: cut the tunnel."""


class ControlChannel(asyncssh.SSHClientSession[bytes]):
    """Reads lines; the first must be hello. Anything malformed ends the tunnel (`misbehaved`).

    Requests of the box run as tasks; the only state that they share is the set of tasks. The
    daemon's own requests are futures in a table, under numbers that are never reused.
    """

    def __init__(self, box: Tunnelled) -> None:
        self._box = box
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None
        self._partial = bytearray()
        self._tasks = BackgroundTasks()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._activity = _Slowly(box.activity)
        self._lines = Bucket(REQUESTS)
        self._at_fault = False
        self.hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()

    async def request(self, kind: str, **fields: object) -> dict[str, Any]:
        """Send a request to the agent and return its unchecked result. The caller sets a timeout.

        Raises Unavailable if the channel is closed, or closes before the answer.
        """
        if self._chan is None or self._chan.is_closing():
            raise Unavailable("the box's tunnel is down; try again in a moment")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._chan.write(protocol.encode({"type": kind, "id": number, **fields}))
            return await answer
        finally:
            del self._asked[number]

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Store the channel."""
        self._chan = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Process complete lines; report a malformed one as misbehaviour."""
        if self._at_fault:
            return  # bytes that were in flight when the tunnel was cut
        self._partial += data
        try:
            while (end := self._partial.find(b"\n")) >= 0:
                line = bytes(self._partial[:end])
                del self._partial[: end + 1]
                self._dispatch(protocol.decode(line))
            if len(self._partial) > protocol.MAX_LINE:
                raise protocol.ProtocolError(f"a line is longer than {protocol.MAX_LINE} bytes")
        except protocol.ProtocolError as error:
            self._at_fault = True
            self._partial.clear()
            self._box.misbehaved(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the box's requests; the daemon's own requests raise Unavailable."""
        self._chan = None
        self._tasks.cancel()
        self._activity.close()
        _lose(self.hello)
        for future in self._asked.values():
            _lose(future)

    def _dispatch(self, message: dict[str, Any]) -> None:
        if not self._lines.take():
            raise protocol.ProtocolError("too many lines in a second")
        kind = message["type"]
        if kind == protocol.HELLO:
            if self.hello.done():
                raise protocol.ProtocolError("a second hello")
            self.hello.set_result(_hello(message))
        elif not self.hello.done():
            raise protocol.ProtocolError("the first message is not hello")
        elif kind == protocol.REPLY:
            self._replied(message)
        elif kind == protocol.ACTIVITY:
            self._activity(checked_presence(message))
        elif kind in protocol.REQUESTS:
            self._start(message)

    def _start(self, message: dict[str, Any]) -> None:
        parameters = protocol.request_parameters(message)
        if len(self._tasks) >= MAX_REQUESTS:
            raise protocol.ProtocolError("too many requests")
        answer = self._answer(_number(message), message["type"], parameters)
        self._tasks.start(answer, name=f"request of the box: {message['type']}")

    def _replied(self, message: dict[str, Any]) -> None:
        """Resolve the request of an answer; ignore an answer that is no longer awaited."""
        future = self._asked.get(_number(message))
        if future is None or future.done():
            return
        result = message.get("result")
        if message.get("ok") is True and isinstance(result, dict):
            future.set_result(result)
        else:
            future.set_exception(Unavailable("the box's agent rejected the request"))

    async def _answer(self, number: int, verb: str, parameters: dict[str, Any]) -> None:
        head = {"type": protocol.REPLY, "id": number}
        try:
            result = await self._box.request(verb, parameters)
            line = protocol.encode({**head, "ok": True, "result": result})
        except BoxdError as error:
            line = protocol.encode({**head, "ok": False, "error": str(error)[:MAX_ERROR]})
        except Exception:
            # The box must get an answer, and the exception must not reach asyncssh's connection.
            logger.exception("a request of a box failed")
            text = "the service failed; its log says why"
            line = protocol.encode({**head, "ok": False, "error": text})
        if self._chan is not None and not self._chan.is_closing():
            self._chan.write(line)


class _Slowly:
    """Passes reports to `tell` at most every ACTIVITY_S seconds.

    It passes the first report at once, and then the latest one. Only callbacks of the event loop
    change its state.
    """

    def __init__(self, tell: Callable[[Presence], None]) -> None:
        self._tell = tell
        self._latest: Presence | None = None
        self._pause: asyncio.TimerHandle | None = None

    def __call__(self, presence: Presence) -> None:
        self._latest = presence
        if self._pause is None:
            self._now()

    def close(self) -> None:
        """Stop passing on reports."""
        if self._pause is not None:
            self._pause.cancel()

    def _now(self) -> None:
        self._pause = None
        if self._latest is None:
            return
        presence, self._latest = self._latest, None
        self._pause = asyncio.get_running_loop().call_later(ACTIVITY_S, self._now)
        self._tell(presence)


def _lose(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(Unavailable("the box's tunnel went down"))
        # Retrieve the exception: there may be no other reader.
        future.exception()


def checked_presence(message: dict[str, Any]) -> Presence:
    """Return the numbers in a message of a box, each limited to 0 to MAX_SHELLS.

    Earlier agents send no number of commands. Raises ProtocolError if a number is not an integer.
    """
    return Presence(_count(message, "shells"), _count({"commands": 0, **message}, "commands"))


def _count(message: dict[str, Any], name: str) -> int:
    number = message.get(name)
    if type(number) is not int:
        raise protocol.ProtocolError(f"the number of {name} is not an integer")
    return min(max(number, 0), MAX_SHELLS)


def _number(message: dict[str, Any]) -> int:
    number = message.get("id")
    if type(number) is not int:
        raise protocol.ProtocolError(f"the {message['type']} message has no id")
    return number


def _hello(message: dict[str, Any]) -> Hello:
    version, generation = message.get("version"), message.get("generation")
    boot, forward_dir = message.get("boot"), message.get("forward_dir")
    if (
        not isinstance(version, int)
        or not isinstance(generation, int)
        or not isinstance(boot, str)
        or not isinstance(forward_dir, str)
        or max(len(boot), len(forward_dir)) > MAX_TEXT
    ):
        raise protocol.ProtocolError("the hello message is malformed")
    if version != protocol.VERSION:
        raise protocol.ProtocolError(f"the agent speaks version {version}")
    return Hello(version, boot, generation, forward_dir)
