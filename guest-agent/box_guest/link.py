"""The agent's end of the control channel: JSON lines to and from the daemon."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from box_guest.errors import RequestFailed, TunnelDown

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST_S = 60.0
"""A request that the daemon does not answer in this time has failed."""


class DaemonLink:
    """Whatever tunnel is up at the moment, seen as a place to send requests to.

    `attach` and `detach` follow the tunnel; requests in flight fail when it goes. No state changes
    across an await but the table of requests, which is keyed by numbers that are never used twice.
    """

    def __init__(self, hello: dict[str, Any]) -> None:
        """`hello` holds the constant fields of the first message."""
        self._hello = hello
        self._generation = 0
        self._send: Callable[[bytes], None] | None = None
        self._partial = bytearray()
        self._numbers = itertools.count(1)
        self._requests: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @property
    def up(self) -> bool:
        """Whether a tunnel is there."""
        return self._send is not None

    def attach(self, send: Callable[[bytes], None]) -> bool:
        """A control channel is open; says hello. False when one is there already."""
        if self._send is not None:
            return False
        self._send = send
        self._partial.clear()
        self._generation += 1
        send(protocol.encode({"type": "hello", **self._hello, "generation": self._generation}))
        return True

    def detach(self) -> None:
        """The control channel is gone."""
        self._send = None
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(TunnelDown("the tunnel to the service went down"))

    def receive(self, data: bytes) -> None:
        """Bytes from the daemon. Raises protocol.ProtocolError for what is not a message."""
        self._partial += data
        while (end := self._partial.find(b"\n")) >= 0:
            line = bytes(self._partial[:end])
            del self._partial[: end + 1]
            self._dispatch(protocol.decode(line))
        if len(self._partial) > protocol.MAX_LINE:
            raise protocol.ProtocolError("line too long")

    async def request(self, kind: str, **fields: object) -> dict[str, Any]:
        """Asks the daemon. Raises TunnelDown or RequestFailed with a text for the user."""
        if self._send is None:
            raise TunnelDown("there is no tunnel to the service at the moment; try again")
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._requests[number] = future
        try:
            self._send(protocol.encode({"type": kind, "id": number, **fields}))
            async with asyncio.timeout(REQUEST_S):
                answer = await future
        except TimeoutError:
            raise RequestFailed(f"the service did not answer within {REQUEST_S:.0f} s") from None
        finally:
            self._requests.pop(number, None)
        if answer.get("ok") is True:
            result = answer.get("result")
            return result if isinstance(result, dict) else {}
        raise RequestFailed(str(answer.get("error", "refused")))

    def _dispatch(self, message: dict[str, Any]) -> None:
        # Messages that announce a suspend or a resume have their place here.
        if message["type"] != "reply":
            return
        number = message.get("id")
        if not isinstance(number, int):
            raise protocol.ProtocolError("reply without an id")
        future = self._requests.get(number)
        if future is not None and not future.done():
            future.set_result(message)
