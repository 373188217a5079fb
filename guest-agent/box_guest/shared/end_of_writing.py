"""Protocol adapter only. OpenSSH's message that the reader of the client's output has exited.

Without it `ssh web yes | head` never ends: the client keeps receiving output and discards it.
OpenSSH sends the message (eow@openssh.com) only to servers whose version begins with "OpenSSH"
(`SERVER_VERSION`). asyncssh finds the handler of a channel request by its name, so a handler is set
on the channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import asyncssh
    from asyncssh.packet import SSHPacket

SERVER_VERSION = "OpenSSH_boxd"
"""Version string of both SSH servers; it reveals neither the library nor its version."""

_HANDLER = "_process_eow_at_openssh_dot_com_request"


def on_end_of_writing(chan: asyncssh.SSHServerChannel[bytes], unwanted: Callable[[], None]) -> None:
    """Call `unwanted` when the client reports that its output has no reader."""

    def process(packet: SSHPacket) -> bool:
        packet.check_end()
        unwanted()
        _drop_output(chan)
        return True

    setattr(chan, _HANDLER, process)


def _drop_output(chan: asyncssh.SSHServerChannel[bytes]) -> None:
    """Discard stdout that waits for the client's window, so that the session can continue and end.

    OpenSSH does not open its window again for output that it cannot pass on. Stderr stays.
    """
    chan._send_buf = [piece for piece in chan._send_buf if piece[1] is not None]
    chan._send_buf_len = sum(len(data) for data, _ in chan._send_buf)
    chan._flush_send_buf()
