"""Answers the calls of one front process, in the process that needs root.

Anything that does not fit the protocol ends the connection: the other process has a fault, or
somebody has taken it over. Critical sections: none; `_running` changes between awaits only.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from boxd.privileged import messages
from boxd.privileged.channel import Channel, close_received
from boxd.privileged.handlers import AT_ONCE, HANDLERS, Descriptors
from boxd.privileged.messages import Answer, Cancel, Cancelled, Restarted, Step

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from boxd.privileged.calls import Call
    from boxd.privileged.channel import ChannelError
    from boxd.privileged.handlers import Handler
    from boxd.privileged.local import LocalHost
    from boxd.privileged.messages import Request

CALLS_MAX = 4096
"""Maximum number of calls in progress. With more, the server reads no messages until some end."""

_log = logging.getLogger(__name__)


class Server:
    """The connection of one front process. `run` answers its calls until it ends."""

    def __init__(
        self,
        host: LocalHost,
        sock: socket.socket,
        handlers: Mapping[type[Call], Handler] = HANDLERS,
    ) -> None:
        self._host = host
        self._handlers = handlers
        self._running: dict[int, asyncio.Task[None]] = {}
        self._over = asyncio.get_running_loop().create_future()
        self._turns = {kind: asyncio.Semaphore(most) for kind, most in AT_ONCE.items()}
        self._channel = Channel(
            sock, self._on_message, self._on_end, message_max=messages.CALL_MAX, bounded=True
        )

    async def run(self) -> None:
        """Answer calls until the other process ends or breaks the protocol.

        Calls in progress are cancelled, and have ended when this returns or raises.
        """
        try:
            await self._over
        finally:
            self._channel.close()
            for task in self._running.values():
                _cancel(task)
            while self._running:
                await asyncio.wait(self._running.values())

    def restarted(self, volume: str) -> None:
        """Tell the other process that a crashed mount runs again."""
        self._channel.send(messages.encode(Restarted(volume)))

    def step(self, text: str) -> None:
        """Send a line for the operator."""
        self._channel.send(messages.encode(Step(text)))

    def _on_message(self, message: bytes, descriptors: list[int]) -> None:
        try:
            content = messages.decode_request(message)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            close_received(descriptors)
            self._refuse(str(error))
            return
        if isinstance(content, Cancel):
            close_received(descriptors)
            task = self._running.get(content.id)
            if task is not None:
                _cancel(task)
        elif content.id in self._running or len(descriptors) != content.call.SENT:
            close_received(descriptors)
            self._refuse("a call with the number of another one, or without its descriptors")
        else:
            task = asyncio.create_task(self._answer(content, descriptors))
            self._running[content.id] = task
            task.add_done_callback(partial(self._ended, content.id, descriptors))
            if len(self._running) >= CALLS_MAX:
                self._channel.pause(True)

    async def _answer(self, request: Request, received: list[int]) -> None:
        handle = self._handlers[type(request.call)]
        try:
            async with self._turns.get(type(request.call), nullcontext()):
                value = await handle(self._host, request.call, received)
            descriptors = value if isinstance(value, Descriptors) else []
            content = messages.encode(None if isinstance(value, Descriptors) else value)
        except Exception as error:
            failure = messages.failure_of(request.id, error)
            if failure.text == messages.INTERNAL:
                _log.exception("the call %s failed", type(request.call).__name__)
            self._channel.send(messages.encode(failure))
        else:
            self._channel.send(
                messages.encode(Answer(request.id, msgspec.Raw(content))), descriptors
            )

    def _ended(self, number: int, descriptors: list[int], task: asyncio.Task[None]) -> None:
        """Forget a call, even one that was cancelled before it began."""
        close_received(descriptors)
        del self._running[number]
        if task.cancelled():
            self._channel.send(messages.encode(Cancelled(number)))
        if len(self._running) == CALLS_MAX - 1:
            self._channel.pause(False)

    def _refuse(self, reason: str) -> None:
        _log.error("the connection to the front process is closed: it sent %s", reason)
        self._channel.close()
        self._on_end(None)

    def _on_end(self, error: ChannelError | None) -> None:
        if error is not None:
            _log.error("the connection to the front process is closed: it sent %s", error)
        if not self._over.done():
            self._over.set_result(None)


def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task once. A second cancellation would interrupt its clean-up."""
    if not task.cancelling():
        task.cancel()
