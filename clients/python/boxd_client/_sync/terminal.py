"""Terminals: a login shell in a box, over a WebSocket."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    WebSocketException,
)

from boxd_client._sync.basis import connect
from boxd_client.errors import ConnectionLost, ProtocolError, RequestTimeout, Unauthorized
from boxd_client.protocol import VERSION, Answer, error_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd_client._sync.basis import Connection
    from boxd_client.config import Settings
    from boxd_client.protocol import Request

MAX_MESSAGE = 1024 * 1024
MAX_SEND = 64 * 1024
"""Largest message that the service accepts, in bytes."""
CLOSE_S = 5.0
_EXIT = re.compile(r"exit (\d{1,3})")
_GOING_AWAY, _REVOKED, _NORMAL = 1001, 1008, 1000


class Terminal:
    """A terminal in a box. `exit_code` is None until the shell has ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.exit_code: int | None = None

    def read(self) -> bytes:
        """Return the next output; empty: the shell has ended.

        Raises ConnectionLost if the terminal ended in another way.
        """
        if self.exit_code is not None:
            return b""
        while True:
            try:
                message = self._connection.recv()
            except ConnectionClosed as error:
                self.exit_code = _exit_code(error)
                return b""
            if isinstance(message, bytes) and message:
                return message

    def write(self, data: bytes) -> None:
        """Send keystrokes. Raises ConnectionLost if the terminal has ended."""
        try:
            for start in range(0, len(data), MAX_SEND):
                self._connection.send(data[start : start + MAX_SEND])
        except ConnectionClosed as error:
            raise ConnectionLost("the terminal has ended") from error

    def resize(self, cols: int, rows: int) -> None:
        """Set the size of the terminal in characters."""
        try:
            self._connection.send(json.dumps({"resize": {"cols": cols, "rows": rows}}))
        except ConnectionClosed as error:
            raise ConnectionLost("the terminal has ended") from error


@contextmanager
def open_terminal(settings: Settings, request: Request, timeout: float) -> Iterator[Terminal]:
    """Open a terminal and close it at the end of the context; the shell then receives SIGHUP."""
    url = re.sub("^http", "ws", settings.url) + request.target
    headers = {"Authorization": f"Bearer {settings.key}"}
    with ExitStack() as stack:
        connection = _connect(stack, settings, url, headers, timeout)
        yield Terminal(connection)


def _connect(
    stack: ExitStack, settings: Settings, url: str, headers: dict[str, str], timeout: float
) -> Connection:
    try:
        return stack.enter_context(
            connect(
                url,
                additional_headers=headers,
                user_agent_header=f"boxd-client/{VERSION}",
                compression=None,
                proxy=None,
                max_size=MAX_MESSAGE,
                open_timeout=timeout,
                close_timeout=CLOSE_S,
            )
        )
    except InvalidStatus as error:
        response = error.response
        answer_headers = {name.lower(): value for name, value in response.headers.raw_items()}
        if response.status_code < 400:
            raise ProtocolError(f"the terminal answered with {response.status_code}") from error
        raise error_of(
            Answer(response.status_code, answer_headers, bytes(response.body or b""))
        ) from None
    except TimeoutError as error:
        raise RequestTimeout("the service did not open the terminal in time") from error
    except (InvalidHandshake, WebSocketException) as error:
        raise ProtocolError(f"the service did not open a terminal: {error}") from error
    except OSError as error:
        raise ConnectionLost(f"cannot connect to {settings.url}: {error}") from error


def _exit_code(error: ConnectionClosed) -> int:
    """Return the exit code of the shell from the end of a connection."""
    close = error.rcvd
    if close is None:
        raise ConnectionLost("the connection of the terminal broke") from error
    match = _EXIT.fullmatch(close.reason)
    if close.code == _NORMAL and match is not None:
        return int(match[1])
    if close.code == _REVOKED:
        raise Unauthorized(f"the terminal ended: {close.reason or 'the key was revoked'}", 401)
    if close.code == _GOING_AWAY:
        raise ConnectionLost(f"the box stopped: {close.reason or 'it was removed'}") from error
    raise ConnectionLost(f"the terminal ended: {close.reason or close.code}") from error
