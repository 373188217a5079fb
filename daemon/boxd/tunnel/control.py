"""The control channel of one tunnel, the daemon's end: hello, requests of the box, notices to it.

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
from boxd.tunnel.limits import REQUESTS, Bucket

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_REQUESTS = 8
"""Requests that a box may have in flight."""
MAX_TEXT = 256
MAX_ERROR = 4000
"""Characters of a refusal; the answer has to fit one line."""
MAX_SHELLS = 999
"""Detached shells that a box can claim to have; more says nothing more."""
ACTIVITY_S = 1.0
"""Between two tellings of a box's activity; what comes faster is told once, at the end."""


@dataclass(frozen=True, slots=True)
class Hello:
    """How an agent presents itself. `boot` changes with each start of the agent."""

    version: int
    boot: str
    generation: int
    forward_dir: str


class Tunnelled(Protocol):
    """Who is asked and told what the box at the other end wants and does."""

    async def request(self, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answers a request of `protocol.REQUESTS`; a BoxdError is shown to who asked."""

    def activity(self, shells: int) -> None:
        """The box has that many detached shells, 0 to MAX_SHELLS."""

    def misbehaved(self, reason: str) -> None:
        """The agent broke the rules; the tunnel has to be cut."""


class ControlChannel(asyncssh.SSHClientSession[bytes]):
    """Reads lines; the first is hello. Anything malformed ends the tunnel (`misbehaved`).

    Requests of the box run as tasks of their own; the only state that they share is the table of
    tasks. Requests of ours are a table of futures by numbers that are never used twice.
    """

    def __init__(self, box: Tunnelled) -> None:
        self._box = box
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None
        self._partial = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._activity = _Slowly(box.activity)
        self._lines = Bucket(REQUESTS)
        self._at_fault = False
        self.hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()

    async def request(self, kind: str, **fields: object) -> dict[str, Any]:
        """Asks the agent; what it says is for the caller to check. The caller bounds the time.

        Raises Unavailable when the channel is closed, before the answer or at all.
        """
        if self._chan is None or self._chan.is_closing():
            raise Unavailable("the box's tunnel is down at the moment")
        number = next(self._numbers)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        try:
            self._chan.write(protocol.encode({"type": kind, "id": number, **fields}))
            return await answered
        finally:
            del self._asked[number]

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._chan = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._at_fault:
            return  # what was on its way when the tunnel was cut
        self._partial += data
        try:
            while (end := self._partial.find(b"\n")) >= 0:
                line = bytes(self._partial[:end])
                del self._partial[: end + 1]
                self._dispatch(protocol.decode(line))
            if len(self._partial) > protocol.MAX_LINE:
                raise protocol.ProtocolError("line too long")
        except protocol.ProtocolError as error:
            self._at_fault = True
            self._partial.clear()
            self._box.misbehaved(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._chan = None
        for task in self._tasks:
            task.cancel()
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
            raise protocol.ProtocolError("no hello")
        elif kind == protocol.REPLY:
            self._replied(message)
        elif kind == protocol.ACTIVITY:
            self._activity(checked_shells(message))
        elif kind in protocol.REQUESTS:
            self._start(message)

    def _start(self, message: dict[str, Any]) -> None:
        parameters = protocol.request_parameters(message)
        if len(self._tasks) >= MAX_REQUESTS:
            raise protocol.ProtocolError("too many requests")
        task = asyncio.create_task(self._answer(_number(message), message["type"], parameters))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _replied(self, message: dict[str, Any]) -> None:
        """An answer that nobody waits for any more is dropped."""
        future = self._asked.get(_number(message))
        if future is None or future.done():
            return
        result = message.get("result")
        if message.get("ok") is True and isinstance(result, dict):
            future.set_result(result)
        else:
            future.set_exception(Unavailable("the box's agent refused"))

    async def _answer(self, number: int, verb: str, parameters: dict[str, Any]) -> None:
        head = {"type": protocol.REPLY, "id": number}
        try:
            result = await self._box.request(verb, parameters)
            line = protocol.encode({**head, "ok": True, "result": result})
        except BoxdError as error:
            line = protocol.encode({**head, "ok": False, "error": str(error)[:MAX_ERROR]})
        except Exception:
            # The box must get an answer, and asyncssh's connection must not learn of it.
            logger.exception("a request of a box failed")
            text = "the service failed; its log says why"
            line = protocol.encode({**head, "ok": False, "error": text})
        if self._chan is not None and not self._chan.is_closing():
            self._chan.write(line)


class _Slowly:
    """Tells numbers at most every ACTIVITY_S: the first at once, then the latest.

    Changed by callbacks of the event loop alone.
    """

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._latest: int | None = None
        self._pause: asyncio.TimerHandle | None = None

    def __call__(self, number: int) -> None:
        self._latest = number
        if self._pause is None:
            self._now()

    def close(self) -> None:
        """Nothing is told any more."""
        if self._pause is not None:
            self._pause.cancel()

    def _now(self) -> None:
        self._pause = None
        if self._latest is None:
            return
        number, self._latest = self._latest, None
        self._pause = asyncio.get_running_loop().call_later(ACTIVITY_S, self._now)
        self._tell(number)


def _lose(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(Unavailable("the box's tunnel went down"))
        # Nobody may be waiting for it.
        future.exception()


def checked_shells(message: dict[str, Any]) -> int:
    """The number of detached shells in a message of a box. Raises ProtocolError if there is none;
    what cannot be true is brought to what can."""
    shells = message.get("shells")
    if type(shells) is not int:
        raise protocol.ProtocolError("a number of shells that is none")
    return min(max(shells, 0), MAX_SHELLS)


def _number(message: dict[str, Any]) -> int:
    number = message.get("id")
    if type(number) is not int:
        raise protocol.ProtocolError(f"{message['type']} without an id")
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
        raise protocol.ProtocolError("malformed hello")
    if version != protocol.VERSION:
        raise protocol.ProtocolError(f"the agent speaks version {version}")
    return Hello(version, boot, generation, forward_dir)
