"""Protocol adapter only. OpenSSH's private message that nobody reads a client's output any more.

Without it `ssh web yes | head` never ends: the client goes on taking output, and drops it. OpenSSH
sends it only to servers whose version begins with "OpenSSH" (`SERVER_VERSION`). asyncssh finds
the handler of a channel request by its name, so one is put on the channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import asyncssh
    from asyncssh.packet import SSHPacket

SERVER_VERSION = "OpenSSH_boxd"
"""What both SSH servers call themselves; shows neither a library nor a number."""

_HANDLER = "_process_eow_at_openssh_dot_com_request"


def on_end_of_writing(chan: asyncssh.SSHServerChannel[bytes], unwanted: Callable[[], None]) -> None:
    """Calls `unwanted` when the client says that its output has no reader."""

    def process(packet: SSHPacket) -> bool:
        packet.check_end()
        unwanted()
        _drop_output(chan)
        return True

    setattr(chan, _HANDLER, process)


def _drop_output(chan: asyncssh.SSHServerChannel[bytes]) -> None:
    """Forgets what of it waits for the client's window, so that the session writes on and its end
    is told: OpenSSH gives no more room for what it has and does not pass on. Stderr stays."""
    chan._send_buf = [piece for piece in chan._send_buf if piece[1] is not None]
    chan._send_buf_len = sum(len(data) for data, _ in chan._send_buf)
    chan._flush_send_buf()
