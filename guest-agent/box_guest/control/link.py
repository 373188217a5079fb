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
"""Seconds after which an unanswered request has failed."""
AT_ONCE = 4
"""Requests in flight; more wait. Together with `PACE_S`, this limit holds all users of the box
below the rate that the daemon treats as misbehaviour."""
PACE_S = 0.1
"""Shortest time in seconds for which a request counts as in flight."""
_DRIVE = (protocol.DRIVE_MOUNT, protocol.DRIVE_UMOUNT, protocol.DRIVE_INFO)


class LinkHandler(Protocol):
    """Callbacks for the events of a link. They must neither fail nor wait."""

    def greeted(self) -> None:
        """Note that the tunnel is up and that hello has been sent."""

    def parted(self) -> None:
        """Note that the tunnel is down."""

    def suspend_soon(self, number: int) -> None:
        """Prepare for a freeze. The daemon waits for `answer(number)`."""

    def drive(self, number: int, kind: str, parameters: dict[str, Any]) -> None:
        """Start a request about the box's own mount. The daemon waits for `answer(number)`."""


class DaemonLink:
    """Sends requests to the daemon over the current tunnel, and receives its messages.

    `attach` and `detach` follow the tunnel; requests in flight fail when it goes down. No state
    changes across an await except the table of requests. Its keys are numbers that are never
    reused.
    """

    def __init__(self, hello: dict[str, Any]) -> None:
        """`hello` contains the constant fields of the first message."""
        self._hello = hello
        self.follower: LinkHandler | None = None
        self._generation = 0
        self._send: Callable[[bytes], None] | None = None
        self._partial = bytearray()
        self._numbers = itertools.count(1)
        self._requests: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._turn = asyncio.Semaphore(AT_ONCE)

    @property
    def up(self) -> bool:
        """Whether the tunnel is up."""
        return self._send is not None

    def attach(self, send: Callable[[bytes], None]) -> bool:
        """Use a newly opened control channel and send hello; return False if one is in use."""
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
        """Stop using the control channel; requests in flight raise TunnelDown."""
        self._send = None
        if self.follower is not None:
            self.follower.parted()
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(TunnelDown("the tunnel to the service went down"))

    def receive(self, data: bytes) -> None:
        """Process bytes from the daemon. Raises protocol.ProtocolError for an invalid message."""
        self._partial += data
        while (end := self._partial.find(b"\n")) >= 0:
            line = bytes(self._partial[:end])
            del self._partial[: end + 1]
            self._dispatch(protocol.decode(line))
        if len(self._partial) > protocol.MAX_LINE:
            raise protocol.ProtocolError(f"a line is longer than {protocol.MAX_LINE} bytes")

    async def request(self, kind: str, **fields: object) -> dict[str, Any]:
        """Send a request to the daemon and return its result.

        Raises TunnelDown or RequestFailed, with a text for the user.
        """
        await self._turn.acquire()
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            return await self._request(kind, fields)
        finally:
            loop.call_at(start + PACE_S, self._turn.release)

    async def _request(self, kind: str, fields: dict[str, object]) -> dict[str, Any]:
        if self._send is None:
            raise TunnelDown("the tunnel to the service is down; try again in a moment")
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
        """Send a message that needs no answer. Return False if the tunnel is down."""
        if self._send is None:
            return False
        self._send(protocol.encode({"type": kind, **fields}))
        return True

    def answer(self, number: int, **result: object) -> None:
        """Answer a request of the daemon. Does nothing if the tunnel is down."""
        self.tell(protocol.REPLY, id=number, ok=True, result=result)

    def _dispatch(self, message: dict[str, Any]) -> None:
        kind, number = message["type"], message.get("id")
        if kind not in (protocol.REPLY, protocol.SUSPEND_SOON, *_DRIVE):
            return
        if not isinstance(number, int):
            raise protocol.ProtocolError(f"the {kind} message has no id")
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
