"""Protocol adapter only. One WebSocket, from its handshake to its end.

Before the WebSocket is accepted, an error is an HTTP response with its own status. Afterwards an
error is a close code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import BoxdError, InvalidKey, NotFound, Unavailable
from boxd.http.requests.body import ClientGone
from boxd.http.requests.exchange import CLOSE, COMMON_HEADERS, LIMIT, RECORD, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Receive, Scope, Send

    from boxd.http.requests.errors import Answer

NORMAL = 1000
GOING_AWAY = 1001
POLICY = 1008
TOO_BIG = 1009
INTERNAL = 1011
RESTART = 1012
NO_CODE = 1005
REASON_BYTES = 123
"""Maximum length of the reason in a close frame, in bytes."""


class Socket(Record):
    """One WebSocket of a client. One task reads; any task may send or close."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self.accepted = False
        self.close_code = NO_CODE
        self.close_reason = ""
        """The reason that the client closed with, once `next` has returned None."""
        self.subprotocols: list[str] = list(scope.get("subprotocols", ()))
        self._bound: Callable[[int], None] | None = scope.get("state", {}).get(LIMIT)
        self._receive = receive
        self._send = send

    def limit(self, size: int) -> None:
        """Limit messages of the client; a longer one closes the WebSocket with TOO_BIG.

        Call it before `accept`. The default limit is 16 MiB.
        """
        if self._bound is not None:
            self._bound(size)

    async def accept(
        self, subprotocol: str | None = None, lines: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Complete the handshake. `lines`: further header lines. Raises ClientGone."""
        await self._pass(
            {"type": "websocket.accept", "subprotocol": subprotocol, "headers": list(lines)}
        )
        self.accepted, self.status = True, 101

    async def refuse(self, answer: Answer) -> None:
        """End the handshake with an HTTP response. Raises ClientGone."""
        names = {name for name, _ in answer.headers}
        common = [line for line in COMMON_HEADERS if line[0] not in names]
        await self.decline(answer.status, [*answer.lines(), *common], answer.body)

    async def decline(self, status: int, lines: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """End the handshake with the HTTP response of another server. Raises ClientGone."""
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
        """Return the next message, binary or text; None when the client has closed or is gone."""
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
        """Send one message; wait while the write buffer is full. Raises ClientGone."""
        self.bytes_out += len(data)
        key = "text" if isinstance(data, str) else "bytes"
        await self._pass({"type": "websocket.send", key: data})

    async def close(self, code: int, reason: str = "") -> None:
        """Close the WebSocket; no error if it has ended. A reason that is too long is truncated."""
        self.finished = True
        short = reason.encode()[:REASON_BYTES].decode("utf-8", "ignore")
        try:
            await self._pass({"type": "websocket.close", "code": code, "reason": short})
        except ClientGone:
            return

    async def _pass(self, message: dict[str, object]) -> None:
        try:
            await self._send(message)
        except OSError:  # uvicorn reports a lost connection with a subclass of OSError
            raise ClientGone from None


def socket_of(scope: Scope) -> Socket:
    """Return the WebSocket of a scope."""
    record = scope[RECORD]
    if not isinstance(record, Socket):
        raise TypeError("the scope is not that of a WebSocket")
    return record


def close_code(error: BoxdError) -> int:
    """Return the close code for an error on an accepted WebSocket."""
    if isinstance(error, NotFound):
        return GOING_AWAY
    if isinstance(error, InvalidKey):
        return POLICY
    return RESTART if isinstance(error, Unavailable) else POLICY
