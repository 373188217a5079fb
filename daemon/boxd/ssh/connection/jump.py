"""Protocol adapter only. User `jump`: the SSH server inside a confidential box, as `ssh -J` asks.

The client asks for a forwarding to a host whose name is a box spec; what it says to the SSH server
there is between the two of them. All of the pumping is `forward`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import asyncssh
from asyncssh.constants import OPEN_ADMINISTRATIVELY_PROHIBITED

from box_guest import protocol
from boxd.errors import BadName
from boxd.names.spec import parse_spec
from boxd.names.words import escaped
from boxd.ssh.connection.forward import to_port
from boxd.ssh.connection.router import ToBox

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MOST = 64
"""Targets that are remembered of one connection."""
ONLY_RELAYS = "jump only relays: ssh -J jump@HOST root@NAME"

dial_relay = to_port(protocol.RELAY_HOST, 22)
"""Opens a connection to the SSH server inside the box."""


class Jumps(Generic[T]):
    """Where the channels of one connection lead to: the same text to the same box, also where it
    asks for a new one. No method awaits."""

    def __init__(self, flavors: frozenset[str], make: Callable[[ToBox], T]) -> None:
        """`flavors` are the known ones; `make` makes what a box is reached through."""
        self._flavors = flavors
        self._make = make
        self._known: dict[str, T] = {}

    def target(self, host: str) -> T:
        """What leads to the box that a client names as a host; the port means nothing.

        Raises asyncssh.ChannelOpenError with the reason.
        """
        # OpenSSH lets `%h` be anything between brackets, as it writes addresses.
        text = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if text not in self._known:
            try:
                spec = parse_spec(text, self._flavors, allow_anonymous=True)
            except BadName as error:
                reason = escaped(str(error))
                raise asyncssh.ChannelOpenError(OPEN_ADMINISTRATIVELY_PROHIBITED, reason) from None
            if len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            self._known[text] = self._make(ToBox(text, spec))
        return self._known[text]
