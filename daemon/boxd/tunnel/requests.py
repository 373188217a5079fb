"""Requests to the agent on a channel of their own: the request, the answer, and what follows.

Everything that arrives here was written by a box and is hostile until checked.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from box_guest.shared.requests import (
    BAD,
    CONFLICT,
    FULL,
    MAX_ANSWER,
    MAX_REQUEST,
    MISSING,
    Lines,
    MalformedMessage,
    Refused,
    encode_line,
    result_of,
)
from boxd.errors import BadRequest, BoxdError, Conflict, NotFound, QuotaExceeded, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from boxd.tunnel.channel import Exec, Tunnel

ANSWER_S = 60.0
"""Seconds within which the agent must answer."""
_ERRORS: dict[str, type[BoxdError]] = {
    BAD: BadRequest,
    MISSING: NotFound,
    CONFLICT: Conflict,
    FULL: QuotaExceeded,
}
"""Errors by the kind of the agent's refusal; others are Unavailable."""


class AgentRequest:
    """One request to an agent. Use: `send`, then any `write`, then `answer`, then `rest`."""

    def __init__(self, channel: Exec, what: str) -> None:
        """`what` names the request in error texts."""
        self._channel = channel
        self._what = what
        self._lines = Lines(MAX_ANSWER)
        self._output = channel.output()
        self._first = b""

    async def send(self, request: dict[str, Any], *, more: bool = False) -> None:
        """Send the request line; with `more`, bytes of its input follow."""
        try:
            line = encode_line(request, MAX_REQUEST)
        except MalformedMessage as error:
            raise BadRequest(f"{self._what}: {error}") from None
        await self._channel.write(line)
        if not more:
            self._channel.write_eof()

    async def write(self, data: bytes) -> None:
        """Send input of the request; wait while the box accepts no more."""
        await self._channel.write(data)

    def write_eof(self) -> None:
        """End the input of the request."""
        self._channel.write_eof()

    async def answer(self, *, patient: bool = False) -> dict[str, Any]:
        """Return the unchecked result. With `patient`, wait for it without a limit.

        Raises BadRequest, NotFound, Conflict or QuotaExceeded as the agent does, and Unavailable.
        """
        try:
            async with asyncio.timeout(None if patient else ANSWER_S):
                return result_of(await self._line())
        except Refused as error:
            raise _ERRORS.get(error.kind, Unavailable)(str(error)) from None
        except MalformedMessage as error:
            raise self.malformed(error) from None
        except TimeoutError:
            raise Unavailable(
                f"{self._what}: the box did not answer within {ANSWER_S:.0f} s"
            ) from None

    async def rest(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes after the answer until the agent closes the channel.

        Raises Unavailable if the tunnel goes down.
        """
        if self._first:
            yield self._first
            self._first = b""
        async for _, data in self._output:
            yield data
        await self._ended()

    def malformed(self, error: MalformedMessage) -> Unavailable:
        """Return the error for an answer that breaks the protocol."""
        return Unavailable(f"{self._what}: the box's agent broke the protocol: {error}")

    async def _line(self) -> bytes:
        async for _, data in self._output:
            split = self._lines.add(data)
            if split is not None:
                line, self._first = split
                return line
        await self._ended()
        raise Unavailable(f"{self._what}: the box's agent sent no answer")

    async def _ended(self) -> None:
        """Raise Unavailable unless the agent has closed the channel itself."""
        try:
            await self._channel.wait()
        except Unavailable:
            text = f"{self._what}: the connection to the box was lost; try again"
            raise Unavailable(text) from None

    async def close(self) -> None:
        """Close the channel."""
        self._channel.close()
        await self._output.aclose()


@asynccontextmanager
async def agent_request(
    tunnel: Tunnel, subsystem: str, what: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[AgentRequest]:
    """Open a channel for one request; it is closed when the context ends. Raises Unavailable."""
    channel = await tunnel.open_subsystem(subsystem, lacks=f"cannot do that: {what}", env=env)
    request = AgentRequest(channel, what)
    try:
        yield request
    finally:
        await request.close()
