"""Commands of any bytes: a file's name in another encoding than UTF-8 may stand in one.

asyncssh refuses such a command without asking anybody. It finds the handler of a channel request by
its name, so one is put on the channel. Inside, bytes that are no UTF-8 are surrogates, as Python
holds them in names of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import asyncssh
    from asyncssh.packet import SSHPacket

_HANDLER = "_process_exec_request"


def take_any_command(chan: asyncssh.SSHServerChannel[bytes]) -> None:
    """Lets `exec_requested` decide about every command."""

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
    """The bytes of such a command."""
    return None if command is None else command.encode("utf-8", "surrogateescape")


def is_text(command: str) -> bool:
    """Whether all of it is UTF-8."""
    return not any("\udc80" <= character <= "\udcff" for character in command)
