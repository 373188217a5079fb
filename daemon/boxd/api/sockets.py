"""Protocol adapter only. One WebSocket, from its handshake to its end.

Until it is accepted every failure is an HTTP answer with its real status; afterwards a close code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.api.body import ClientGone
from boxd.api.exchange import CLOSE, COMMON_HEADERS, LIMIT, RECORD, Record
from boxd.errors import BoxdError, InvalidKey, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Receive, Scope, Send

    from boxd.api.errors import Answer

NORMAL = 1000
GOING_AWAY = 1001
POLICY = 1008
TOO_BIG = 1009
INTERNAL = 1011
RESTART = 1012
BUSY = 1013
NO_CODE = 1005
REASON_BYTES = 123
"""What a close frame can carry."""


class Socket(Record):
    """See the module. One task reads; any task may send or close."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self.accepted = False
        self.close_code = NO_CODE
        self.close_reason = ""
        """What the client closed with, once `next` has returned None."""
        self.subprotocols: list[str] = list(scope.get("subprotocols", ()))
        self._bound: Callable[[int], None] | None = scope.get("state", {}).get(LIMIT)
        self._receive = receive
        self._send = send

    def limit(self, size: int) -> None:
        """Longer messages of the client end it with TOO_BIG; 16 MiB unless set before `accept`."""
        if self._bound is not None:
            self._bound(size)

    async def accept(
        self, subprotocol: str | None = None, lines: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Completes the handshake, with further header lines. ClientGone."""
        await self._pass(
            {"type": "websocket.accept", "subprotocol": subprotocol, "headers": list(lines)}
        )
        self.accepted, self.status = True, 101

    async def refuse(self, answer: Answer) -> None:
        """Ends the handshake with an HTTP answer."""
        names = {name for name, _ in answer.headers}
        common = [line for line in COMMON_HEADERS if line[0] not in names]
        await self.decline(answer.status, [*answer.lines(), *common], answer.body)

    async def decline(self, status: int, lines: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Ends the handshake with an HTTP answer that is not of this service. ClientGone."""
        self.status, self.finished = status, True
        await self._pass(
            {
                "type": "websocket.http.response.start",
                "status": status,
                "headers": [*lines, CLOSE],
            }
        )
        await self._pass({"type": "websocket.http.response.body", "body": body})
        self.bytes_out += len(body)

    async def next(self) -> bytes | str | None:
        """The next message, binary or text; None when the client has closed or is gone."""
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self.finished = True
            self.close_code = message.get("code") or NO_CODE
            self.close_reason = message.get("reason") or ""
            return None
        data: bytes | str | None = message.get("bytes")
        if data is None:
            text: str = message.get("text") or ""
            self.bytes_in += len(text)
            return text
        self.bytes_in += len(data)
        return data

    async def send(self, data: bytes | str) -> None:
        """One message; waits while the connection takes no more. ClientGone."""
        self.bytes_out += len(data)
        key = "text" if isinstance(data, str) else "bytes"
        await self._pass({"type": "websocket.send", key: data})

    async def close(self, code: int, reason: str = "") -> None:
        """Ends it; no error when it has ended already. Too long a reason is cut."""
        self.finished = True
        short = reason.encode()[:REASON_BYTES].decode("utf-8", "ignore")
        try:
            await self._pass({"type": "websocket.close", "code": code, "reason": short})
        except ClientGone:
            return

    async def _pass(self, message: dict[str, object]) -> None:
        try:
            await self._send(message)
        except OSError:  # uvicorn's own kind of it
            raise ClientGone from None


def socket_of(scope: Scope) -> Socket:
    """The WebSocket that a scope belongs to."""
    found = scope[RECORD]
    if not isinstance(found, Socket):
        raise TypeError("not a WebSocket")
    return found


def close_code(error: BoxdError) -> int:
    """The code that tells what ended a WebSocket that was accepted."""
    if isinstance(error, NotFound):
        return GOING_AWAY
    if isinstance(error, InvalidKey):
        return POLICY
    return RESTART if isinstance(error, Unavailable) else POLICY
