"""TCP ports on which programs in a box listen."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any

MAX_PORTS = 1000
"""Maximum number of ports that a list has."""
_LISTEN = "0A"
_LINE = re.compile(r" *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) [0-9A-F:]+ ([0-9A-F]{2}) ")


@dataclass(frozen=True, slots=True, order=True)
class ListeningPort:
    """A port on which a program listens. The proxy reaches programs on 127.0.0.1 or all addresses.

    `address` is the address of the program, `::` and `0.0.0.0` for all addresses.
    """

    port: int
    address: str

    @property
    def proxied(self) -> bool:
        """Whether the proxy reaches the program."""
        return self.address in ("0.0.0.0", "::", "127.0.0.1")  # noqa: S104 - compares, binds nothing

    def to_json(self, box_id: str, url: str | None) -> dict[str, Any]:
        """Return the JSON form. `url` is the address of the preview; None: there is none.

        `path` is the address below that of the API. Both are null for a port that the proxy does
        not reach.
        """
        path = f"/v1/boxes/{box_id}/proxy/{self.port}/"
        return {
            "port": self.port,
            "address": self.address,
            "path": path if self.proxied else None,
            "url": url if self.proxied else None,
        }


def listening_ports(*tables: str) -> list[ListeningPort]:
    """Return the listening ports in tables of sockets, in the format of /proc/net/tcp and tcp6.

    Lines in another format are ignored: programs in the box may have made them up.
    """
    ports: set[ListeningPort] = set()
    for table in tables:
        for line in table.splitlines():
            match = _LINE.match(line)
            if match and match[3] == _LISTEN and len(ports) < MAX_PORTS:
                ports.add(ListeningPort(int(match[2], 16), _address(match[1])))
    return sorted(ports)


def _address(digits: str) -> str:
    """Return an address that the kernel wrote as 32-bit words in the order of the host's bytes."""
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
