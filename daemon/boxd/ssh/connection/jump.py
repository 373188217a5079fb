"""Protocol adapter only. User `jump`: access to the SSH server inside a confidential box.

`ssh -J` asks for a forwarding to a host whose name is a box spec. The client and the SSH server in
the box encrypt their own connection inside it. `forward` copies the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import asyncssh
from asyncssh.constants import OPEN_ADMINISTRATIVELY_PROHIBITED

from box_guest import protocol
from boxd.errors import BadName
from boxd.names.spec import parse_spec
from boxd.names.words import escaped
from boxd.ssh.connection.forward import port_dialer
from boxd.ssh.connection.router import BoxRoute

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MAX_TARGETS = 64
"""Maximum number of targets that one connection remembers."""
NO_SESSIONS = "jump only relays: ssh -J jump@HOST root@NAME"

dial_relay = port_dialer(protocol.RELAY_HOST, 22)
"""Opens a connection to the SSH server inside the box."""


class JumpTargets(Generic[T]):
    """The targets of one connection: the same text leads to the same box.

    This also holds for a text that creates a new box. No method awaits.
    """

    def __init__(self, flavors: frozenset[str], make_target: Callable[[BoxRoute], T]) -> None:
        """`flavors` are the names of the known flavors."""
        self._flavors = flavors
        self._make_target = make_target
        self._targets: dict[str, T] = {}

    def target(self, host: str) -> T:
        """Return the target for a host name that the client sent; the port has no meaning.

        Raises asyncssh.ChannelOpenError with the reason.
        """
        # OpenSSH accepts any text for `%h` in brackets, the form of IPv6 addresses.
        text = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if text not in self._targets:
            try:
                spec = parse_spec(text, self._flavors, allow_anonymous=True)
            except BadName as error:
                reason = escaped(str(error))
                raise asyncssh.ChannelOpenError(OPEN_ADMINISTRATIVELY_PROHIBITED, reason) from None
            if len(self._targets) >= MAX_TARGETS:
                del self._targets[next(iter(self._targets))]
            self._targets[text] = self._make_target(BoxRoute(text, spec))
        return self._targets[text]
