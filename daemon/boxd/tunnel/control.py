"""The control channel of one tunnel, the daemon's end: hello, requests of the box, notices to it.

Everything that arrives here was written by a box and is hostile until checked.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncssh

from box_guest import protocol
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

MAX_REQUESTS = 8
"""Requests that a box may have in flight."""
WORKSPACE_VERBS = frozenset({"mount", "umount", "info"})
MAX_TEXT = 256
MAX_ERROR = 4000
"""Characters of a refusal; the answer has to fit one line."""


@dataclass(frozen=True, slots=True)
class Hello:
    """How an agent presents itself. `boot` changes with each start of the agent."""

    version: int
    boot: str
    generation: int
    forward_dir: str


class ControlChannel(asyncssh.SSHClientSession[bytes]):
    """Reads lines; the first is hello. Anything malformed ends the tunnel (`misbehaved`).

    Requests run as tasks of their own; the only state that they share is the table of tasks.
    """

    def __init__(
        self,
        on_request: Callable[[str], Awaitable[dict[str, Any]]],
        misbehaved: Callable[[str], None],
    ) -> None:
        self._on_request = on_request
        self._misbehaved = misbehaved
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None
        self._partial = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()
        self.hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()

    def notify(self, kind: str, **fields: object) -> None:
        """Sends a message that has no answer. Raises Unavailable when the channel is closed."""
        if self._chan is None or self._chan.is_closing():
            raise Unavailable("the box's tunnel is down at the moment")
        self._chan.write(protocol.encode({"type": kind, **fields}))

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._chan = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._partial += data
        try:
            while (end := self._partial.find(b"\n")) >= 0:
                line = bytes(self._partial[:end])
                del self._partial[: end + 1]
                self._dispatch(protocol.decode(line))
            if len(self._partial) > protocol.MAX_LINE:
                raise protocol.ProtocolError("line too long")
        except protocol.ProtocolError as error:
            self._partial.clear()
            self._misbehaved(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._chan = None
        for task in self._tasks:
            task.cancel()
        if not self.hello.done():
            self.hello.set_exception(Unavailable("the box's tunnel went down"))
            # Nobody may be waiting for it.
            self.hello.exception()

    def _dispatch(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "hello":
            if self.hello.done():
                raise protocol.ProtocolError("a second hello")
            self.hello.set_result(_hello(message))
            return
        if not self.hello.done():
            raise protocol.ProtocolError("no hello")
        if kind == "workspace":
            self._start(message)

    def _start(self, message: dict[str, Any]) -> None:
        number, verb = message.get("id"), message.get("verb")
        if not isinstance(number, int) or verb not in WORKSPACE_VERBS:
            raise protocol.ProtocolError("malformed request")
        if len(self._tasks) >= MAX_REQUESTS:
            raise protocol.ProtocolError("too many requests")
        task = asyncio.create_task(self._answer(number, verb))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, verb: str) -> None:
        answer: dict[str, Any] = {"type": "reply", "id": number}
        try:
            answer |= {"ok": True, "result": await self._on_request(verb)}
        except BoxdError as error:
            answer |= {"ok": False, "error": str(error)[:MAX_ERROR]}
        except Exception:
            # The box must get an answer, and asyncssh's connection must not learn of it.
            logger.exception("a request of a box failed")
            answer |= {"ok": False, "error": "the service failed; its log says why"}
        if self._chan is not None and not self._chan.is_closing():
            self._chan.write(protocol.encode(answer))


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
