"""The agent's end of the control channel: JSON lines to and from the daemon."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Protocol

from box_guest import protocol
from box_guest.errors import RequestFailed, TunnelDown

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST_S = 60.0
"""A request that the daemon does not answer in this time has failed."""
AT_ONCE = 4
"""Requests under way; more wait. With `PACE_S` it keeps everybody in the box together below what
the daemon takes for misbehaviour."""
PACE_S = 0.1
"""The least time for which a request counts as under way."""
_DRIVE = (protocol.DRIVE_MOUNT, protocol.DRIVE_UMOUNT, protocol.DRIVE_INFO)


class Follower(Protocol):
    """Who acts on what happens to the link. Called in its callbacks: must not fail or wait."""

    def greeted(self) -> None:
        """A tunnel is up and hello is said."""

    def parted(self) -> None:
        """The tunnel is gone."""

    def suspend_soon(self, number: int) -> None:
        """The daemon announces a freeze and waits for `answer(number)`."""

    def drive(self, number: int, kind: str, parameters: dict[str, Any]) -> None:
        """The daemon wants something of the box's own mount, and waits for `answer(number)`."""


class DaemonLink:
    """Whatever tunnel is up at the moment, seen as a place to send requests to.

    `attach` and `detach` follow the tunnel; requests in flight fail when it goes. No state changes
    across an await but the table of requests, which is keyed by numbers that are never used twice.
    """

    def __init__(self, hello: dict[str, Any]) -> None:
        """`hello` holds the constant fields of the first message."""
        self._hello = hello
        self.follower: Follower | None = None
        self._generation = 0
        self._send: Callable[[bytes], None] | None = None
        self._partial = bytearray()
        self._numbers = itertools.count(1)
        self._requests: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._turn = asyncio.Semaphore(AT_ONCE)

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
        hello = {"type": protocol.HELLO, **self._hello, "generation": self._generation}
        send(protocol.encode(hello))
        if self.follower is not None:
            self.follower.greeted()
        return True

    def detach(self) -> None:
        """The control channel is gone."""
        self._send = None
        if self.follower is not None:
            self.follower.parted()
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
        await self._turn.acquire()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await self._request(kind, fields)
        finally:
            loop.call_at(began + PACE_S, self._turn.release)

    async def _request(self, kind: str, fields: dict[str, object]) -> dict[str, Any]:
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

    def tell(self, kind: str, **fields: object) -> bool:
        """A message that has no answer; False without a tunnel."""
        if self._send is None:
            return False
        self._send(protocol.encode({"type": kind, **fields}))
        return True

    def answer(self, number: int, **result: object) -> None:
        """Answers a request of the daemon; nothing happens when its tunnel is gone."""
        self.tell(protocol.REPLY, id=number, ok=True, result=result)

    def _dispatch(self, message: dict[str, Any]) -> None:
        kind, number = message["type"], message.get("id")
        if kind not in (protocol.REPLY, protocol.SUSPEND_SOON, *_DRIVE):
            return
        if not isinstance(number, int):
            raise protocol.ProtocolError(f"{kind} without an id")
        if kind == protocol.SUSPEND_SOON:
            if self.follower is not None:
                self.follower.suspend_soon(number)
            return
        if kind in _DRIVE:
            parameters = protocol.drive_request(message)
            if self.follower is not None:
                self.follower.drive(number, kind, parameters)
            return
        future = self._requests.get(number)
        if future is not None and not future.done():
            future.set_result(message)
