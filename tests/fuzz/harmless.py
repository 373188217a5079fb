"""What nonsense may not be: the boxes of these tests are processes of this machine, run by root.

Where a connection has a box, only packets pass of which it is known what they do there: a command
that was changed by a bit would be run, and what is typed into a shell, too.
"""

from __future__ import annotations

import struct

SHARE = "svcs_" + "0123456789abcdef" * 2
"""A share that there is not."""
TEXT_ONLY = frozenset({"cli", "images", "image", "help", "sudo", "session-nothing", SHARE})
"""Users whom the front door answers itself: whatever they send, no box hears of it."""
BOX = "web"
"""The user with a box."""
COMMANDS = (b"cat", b"true")
"""What may be run in it."""
REQUESTS = frozenset(
    {b"pty-req", b"window-change", b"signal", b"break", b"eow@openssh.com", b"xon-xoff"}
)
"""Requests of a session that may say anything."""
TARGETS = {
    BOX: ((b"127.0.0.1", 9), (b"", 0), (b"127.0.0.1", 65536)),
    # No spec of a box, so none is made.
    "jump": ((b"Not_A_Name", 22), (b"session-ffff", 22), (b"", 22), (b"..", 22), (b"cli", 22)),
}
"""Where who may be connected to. Nobody listens there."""

_OPEN, _REQUEST = 90, 98


def harmless(user: str, packet: bytes) -> bool:
    """Whether the packet may go out on a connection of the user."""
    if packet[:1] == bytes([_REQUEST]):
        return _is_harmless_request(packet)
    if packet[:1] == bytes([_OPEN]):
        return _is_harmless_open(user, packet)
    return True


def _is_harmless_request(packet: bytes) -> bool:
    name, rest = _string(packet[5:])
    if name == b"exec":
        # After the byte that asks for an answer nothing but the command.
        return rest[1:] in [struct.pack(">I", len(word)) + word for word in COMMANDS]
    return name in REQUESTS


def _is_harmless_open(user: str, packet: bytes) -> bool:
    kind, rest = _string(packet[1:])
    if kind == b"direct-tcpip":
        host, port = _string(rest[12:])
        return any(
            host == name and port[:4] == struct.pack(">I", at) for name, at in TARGETS.get(user, ())
        )
    return kind is not None and (kind == b"session" or kind.startswith(b"nonsense"))


def _string(data: bytes) -> tuple[bytes | None, bytes]:
    """The first string and what follows it; None when it is not whole."""
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 + size:
        return None, b""
    return data[4 : 4 + size], data[4 + size :]
