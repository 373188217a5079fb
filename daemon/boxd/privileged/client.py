"""Calls to the part that needs root, in the process that strangers reach."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from boxd.errors import Unavailable
from boxd.privileged import messages
from boxd.privileged.channel import Channel
from boxd.privileged.messages import Answer, Cancel, Cancelled, Failure, Request, Restarted, Step

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from boxd.privileged.calls import AnyCall, Call
    from boxd.privileged.channel import ChannelError

    Reply = tuple[Answer | Failure | Cancelled, list[int]]

T = TypeVar("T")
LOST = "the part of the service that needs root has ended; the service restarts: try again"


class Client:
    """Sends calls over a channel and waits for their answers."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_step: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_step` receives lines for the operator. `on_lost` is called if the other part ends."""
        self.on_restarted: Callable[[str], None] = _ignore
        """Receives the volume of a mount that crashed and runs again."""
        self._on_step = on_step
        self._on_lost = on_lost
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._next = 0
        self._channel = Channel(
            sock, self._on_message, self._on_end, message_max=messages.ANSWER_MAX
        )
        self._lost = False

    async def do(self, call: Call) -> None:
        """Carry out a call without an answer. Raises its error, or Unavailable.

        A cancellation is raised after the call has ended. The same holds for the other methods.
        """
        await self.ask(call, type(None))

    async def ask(self, call: Call, kind: type[T], descriptors: Sequence[int] = ()) -> T:
        """Return the answer to a call, of the type `kind`. The caller keeps the descriptors."""
        answer, received = await self._answer(call, descriptors)
        _close(received)
        return msgspec.msgpack.decode(answer, type=kind)

    async def fetch(self, call: Call) -> list[int]:
        """Return the descriptors of the answer to a call. The caller closes them."""
        _, received = await self._answer(call, ())
        return received

    async def _answer(
        self, call: Call, descriptors: Sequence[int]
    ) -> tuple[msgspec.Raw, list[int]]:
        if self._lost:
            raise Unavailable(LOST)
        number = self._next
        self._next += 1
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        request = Request(number, cast("AnyCall", call))
        self._channel.send(messages.encode(request), [os.dup(one) for one in descriptors])
        reply, received = await self._reply(number, future)
        if isinstance(reply, Answer):
            return reply.value, received
        _close(received)
        if isinstance(reply, Failure):
            raise messages.error_of(reply)
        raise asyncio.CancelledError

    def close(self) -> None:
        """Close the channel. Calls in progress fail."""
        self._channel.close()
        self._fail_all()

    async def _reply(self, number: int, future: asyncio.Future[Reply]) -> Reply:
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._channel.send(messages.encode(Cancel(number)))
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled() and future.exception() is None:
                _close(future.result()[1])
            raise

    def _on_message(self, message: bytes, descriptors: list[int]) -> None:
        try:
            content = messages.decode_answer(message)
        except msgspec.DecodeError:
            _close(descriptors)
            raise
        if isinstance(content, Answer | Failure | Cancelled):
            future = self._waiting.pop(content.id, None)
            if future is None or future.done():
                _close(descriptors)
            else:
                future.set_result((content, descriptors))
            return
        _close(descriptors)
        if isinstance(content, Restarted):
            self.on_restarted(content.volume)
        elif isinstance(content, Step):
            self._on_step(content.text)

    def _on_end(self, error: ChannelError | None) -> None:
        del error
        self._lost = True
        self._fail_all()
        self._on_lost()

    def _fail_all(self) -> None:
        self._lost = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Unavailable(LOST))


def _ignore(volume: str) -> None:
    del volume


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
