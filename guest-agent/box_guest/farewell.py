"""The end of a connection, with the reason as the last thing that the client reads.

asyncssh's own `disconnect` closes the channels first. Who reads the end of its only channel before
the reason has arrived goes at once: OpenSSH then exits with 255 and has nothing to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncssh.constants import DEFAULT_LANG, MSG_DISCONNECT
from asyncssh.packet import String, UInt32

if TYPE_CHECKING:
    from asyncssh.connection import SSHConnection


def disconnect(connection: SSHConnection, code: int, reason: str) -> None:
    """Tells the client the reason (RFC 4253, 11.1; a `DISC_` number and a text); ends everything.

    Nothing is sent after it: what waits in channels is lost, and the message itself where the
    client has not taken what came before.
    """
    connection.send_packet(MSG_DISCONNECT, UInt32(code), String(reason), String(DEFAULT_LANG))
    connection.abort()
