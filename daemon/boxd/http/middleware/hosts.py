"""Protocol adapter only. Hosts at which MCP is served: protection against DNS rebinding.

A page can resolve its own name to this machine; its browser then treats the service as part of the
page's origin. The browser still sends the page's name as `Host`, which a page cannot change. An
address in `Host` is safe: a name that an attacker owns is never an address.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING

from boxd.http.requests.errors import Refusal
from boxd.http.requests.forwarded import named_hosts
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

MISDIRECTED = 421
LOCAL = "localhost"
_HOST = re.compile(r"(?:\[(?P<address>[^\]]*)\]|(?P<name>[^:]*))(?::[0-9]*)?", re.ASCII)


class ServedHosts:
    """The allowed hosts: addresses, `localhost` and names below it, and the operator's list."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset({LOCAL, *(name.lower() for name in names)})

    def serve(self, host: str) -> bool:
        """Return whether the value of a `Host` header, with or without a port, is allowed."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        if match["address"] is not None:
            return _is_address(match["address"])
        name = match["name"].lower().removesuffix(".")
        return name in self._names or name.endswith(f".{LOCAL}") or _is_address(name)

    def check(self, scope: Scope) -> None:
        """Raise Refusal (421) unless every host that the client or its proxy names is allowed."""
        for host in named_hosts(scope):
            if not self.serve(host):
                text = (
                    f"MCP is not served at the host {shown(host)}: it is not in the list that "
                    "protects browsers from DNS rebinding. If it is a name of this service, add "
                    "it with boxd serve --api-hosts NAME; addresses and localhost always work"
                )
                raise Refusal(MISDIRECTED, text, [])


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
