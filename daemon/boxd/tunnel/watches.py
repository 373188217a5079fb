"""Changes of files in a box, through its agent (`box_guest.shared.watch_messages`).

Everything that arrives here was written by a box and is hostile until checked.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from box_guest import protocol
from box_guest.shared.requests import MalformedMessage, decode_line
from box_guest.shared.watch_messages import MAX_EVENT, FileEvent, file_event
from boxd.tunnel.requests import agent_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from boxd.tunnel.channel import Tunnel
    from boxd.tunnel.requests import AgentRequest


class WatchReader:
    """The events of one watch."""

    def __init__(self, request: AgentRequest) -> None:
        self._request = request

    async def events(self) -> AsyncGenerator[FileEvent, None]:
        """Yield the events in order; the last one has kind END.

        Raises Unavailable if the tunnel goes down, or the agent breaks the protocol.
        """
        partial = bytearray()
        try:
            async for data in self._request.rest():
                partial += data
                *lines, rest = bytes(partial).split(b"\n")
                partial = bytearray(rest)
                for line in lines:
                    yield file_event(decode_line(line))
                if len(partial) > MAX_EVENT:
                    raise MalformedMessage(f"a line is longer than {MAX_EVENT} bytes")
        except MalformedMessage as error:
            raise self._request.malformed(error) from None


@asynccontextmanager
async def watching(tunnel: Tunnel, path: str, *, recursive: bool) -> AsyncIterator[WatchReader]:
    """Watch a directory while the context lasts. The path may contain surrogate escapes.

    Raises NotFound or BadRequest if it is not a directory, Conflict if its file system reports no
    changes, QuotaExceeded above the limits of the agent, and Unavailable.
    """
    what = "watch files"
    async with agent_request(tunnel, protocol.WATCH_SUBSYSTEM, what) as request:
        await request.send({"path": path, "recursive": recursive})
        await request.answer()
        yield WatchReader(request)
