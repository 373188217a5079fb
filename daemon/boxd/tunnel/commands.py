"""Background commands of a box, through its agent (`box_guest.shared.command_messages`).

Everything that arrives here was written by a box and is hostile until checked.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from box_guest.shared import command_messages as messages
from box_guest.shared.command_messages import CommandState, command_state, command_states
from box_guest.shared.requests import MalformedMessage
from boxd.tunnel.requests import agent_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias

    from boxd.tunnel.channel import Stream, Tunnel
    from boxd.tunnel.requests import AgentRequest

    _Opening: TypeAlias = AbstractAsyncContextManager[AgentRequest]

UNLIMITED = messages.MAX_OFFSET
"""The limit of an output without one."""


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A part of a command's output.

    `stream` None: `dropped` bytes are no longer stored. `next_offset` is the offset after the part.
    """

    stream: Stream | None
    data: bytes
    dropped: int
    next_offset: int


class OutputReader:
    """The output of a command from an offset; `end` is the last state, after all pieces."""

    def __init__(self, request: AgentRequest, state: CommandState, offset: int, limit: int) -> None:
        self._request = request
        self._offset = offset
        self._limit = limit
        self.state = state
        self.end: CommandState | None = None

    async def pieces(self) -> AsyncGenerator[OutputPiece, None]:
        """Yield the pieces in order.

        Raises Unavailable if the tunnel goes down, or the agent breaks the protocol.
        """
        frames = messages.Frames()
        try:
            async for data in self._request.rest():
                for kind, content in frames.add(data):
                    if self.end is not None:
                        raise MalformedMessage("output follows the end")
                    if kind == messages.END:
                        self.end = messages.end_state(content)
                    else:
                        yield self._piece(kind, content)
        except MalformedMessage as error:
            raise self._request.malformed(error) from None
        if self.end is None:
            raise self._request.malformed(MalformedMessage("the output has no end"))

    def _piece(self, kind: int, content: bytes) -> OutputPiece:
        dropped = messages.gap_size(content) if kind == messages.DROPPED else 0
        data = b"" if dropped else content
        if not dropped and not data:
            raise MalformedMessage("a frame is empty")
        self._offset += dropped or len(data)
        self._limit -= len(data)
        if self._offset > messages.MAX_OFFSET or self._limit < 0:
            raise MalformedMessage("the box sent more output than requested")
        stream: Stream | None = "stderr" if kind == messages.STDERR else "stdout"
        return OutputPiece(None if dropped else stream, data, dropped, self._offset)


class BoxCommands:
    """The background commands of the box behind a tunnel.

    Each method raises NotFound for an unknown id, Conflict if the state of the command does not
    allow the request, and Unavailable if the box cannot be reached or breaks the protocol.
    """

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel

    async def start(
        self,
        cmd: str,
        env: Mapping[str, str],
        *,
        timeout_s: int | None,
        keep_awake: bool,
        stdin: bool,
    ) -> CommandState:
        """Start a command. Raises QuotaExceeded if the box runs too many."""
        message = {
            "do": messages.START,
            "cmd": cmd,
            "timeout_s": timeout_s,
            "keep_awake": keep_awake,
            "stdin": stdin,
        }
        return await self._one("start a background command", message, env)

    async def all(self) -> list[CommandState]:
        """Return all commands, in the order of their start."""
        async with self._request("list background commands") as request:
            await request.send({"do": messages.LIST})
            result = await request.answer()
            try:
                return command_states(result.get("commands"))
            except MalformedMessage as error:
                raise request.malformed(error) from None

    async def show(self, number: str) -> CommandState:
        """Return one command."""
        return await self._one(f"show command {number}", {"do": messages.SHOW, "id": number})

    async def signal(self, number: str, name: str) -> CommandState:
        """Send a signal (name without SIG) to the process group of a command."""
        message = {"do": messages.SIGNAL, "id": number, "signal": name}
        return await self._one(f"send a signal to command {number}", message)

    async def remove(self, number: str) -> CommandState:
        """End a command and forget it."""
        message = {"do": messages.REMOVE, "id": number}
        return await self._one(f"remove command {number}", message)

    async def write(
        self, number: str, pieces: AsyncIterable[bytes], *, close: bool
    ) -> CommandState:
        """Write input to a command; with `close`, close the input afterwards.

        Returns when the command has accepted all of it.
        """
        async with self._request(f"write to command {number}") as request:
            await request.send({"do": messages.WRITE, "id": number, "close": close}, more=True)
            feeding = asyncio.create_task(_feed(request, pieces), name="input of a command")
            answering = asyncio.create_task(
                request.answer(patient=True), name="answer of a command"
            )
            try:
                await asyncio.wait({feeding, answering}, return_when=asyncio.FIRST_COMPLETED)
                if feeding.done():
                    feeding.result()
                return self._state(request, await answering)
            finally:
                feeding.cancel()
                answering.cancel()
                await asyncio.gather(feeding, answering, return_exceptions=True)

    @asynccontextmanager
    async def output(
        self, number: str, offset: int, *, follow: bool, limit: int = UNLIMITED
    ) -> AsyncIterator[OutputReader]:
        """Read at most `limit` bytes of output from `offset`; with `follow`, until the end.

        Raises BadRequest for an offset after the end of the output.
        """
        message = {
            "do": messages.OUTPUT,
            "id": number,
            "offset": offset,
            "follow": follow,
            "limit": limit,
        }
        async with self._request(f"read the output of command {number}") as request:
            await request.send(message)
            state = self._state(request, await request.answer())
            yield OutputReader(request, state, offset, limit)

    def _request(self, what: str, env: Mapping[str, str] | None = None) -> _Opening:
        return agent_request(self._tunnel, protocol.COMMANDS_SUBSYSTEM, what, env)

    async def _one(
        self, what: str, message: dict[str, Any], env: Mapping[str, str] | None = None
    ) -> CommandState:
        async with self._request(what, env) as request:
            await request.send(message)
            return self._state(request, await request.answer())

    def _state(self, request: AgentRequest, result: Mapping[str, Any]) -> CommandState:
        try:
            return command_state(result.get("command"))
        except MalformedMessage as error:
            raise request.malformed(error) from None


async def _feed(request: AgentRequest, pieces: AsyncIterable[bytes]) -> None:
    async for data in pieces:
        await request.write(data)
    request.write_eof()
