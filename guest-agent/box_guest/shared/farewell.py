"""Ends a connection so that the reason is the last thing that the client reads.

asyncssh's own `disconnect` closes the channels first. A client whose only channel closes before the
reason arrives exits at once: OpenSSH then returns 255 without a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncssh.constants import DEFAULT_LANG, MSG_DISCONNECT
from asyncssh.packet import String, UInt32

if TYPE_CHECKING:
    from asyncssh.connection import SSHConnection


def disconnect(connection: SSHConnection, code: int, reason: str) -> None:
    """Send the client the reason (RFC 4253, 11.1: a `DISC_` code and a text) and end the
    connection.

    Nothing is sent after the message, so data that waits in channels is lost. The message itself is
    lost if the client has not read earlier data.
    """
    connection.send_packet(MSG_DISCONNECT, UInt32(code), String(reason), String(DEFAULT_LANG))
    connection.abort()
