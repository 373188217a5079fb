"""Commands of arbitrary bytes, which may contain file names in encodings other than UTF-8.

asyncssh rejects such a command without calling the session. It finds the handler of a channel
request by its name, so a handler is set on the channel. Internally, bytes that are not UTF-8 are
surrogates, as Python represents them in file names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import asyncssh
    from asyncssh.packet import SSHPacket

_HANDLER = "_process_exec_request"


def take_any_command(chan: asyncssh.SSHServerChannel[bytes]) -> None:
    """Let the session's `exec_requested` decide about every command."""

    def process(packet: SSHPacket) -> bool:
        command = packet.get_string()
        packet.check_end()
        return chan._start_session(command=command.decode("utf-8", "surrogateescape"))

    setattr(chan, _HANDLER, process)


@overload
def encoded(command: str) -> bytes: ...
@overload
def encoded(command: None) -> None: ...
@overload
def encoded(command: str | None) -> bytes | None: ...
def encoded(command: str | None) -> bytes | None:
    """Return the bytes of a command whose non-UTF-8 bytes are surrogates; None stays None."""
    return None if command is None else command.encode("utf-8", "surrogateescape")


def is_text(command: str) -> bool:
    """Return whether the whole command is UTF-8."""
    return not any("\udc80" <= character <= "\udcff" for character in command)
