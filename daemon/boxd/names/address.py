"""Network addresses as operators write them: listeners, public names of a listener, networks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from boxd.errors import BadRequest

_MAX_PORT = 65535
_HOST = re.compile(
    r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9.-]{0,252})|\[(?P<six>[0-9A-Fa-f:.]{2,45})\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on. With port 0 the kernel chooses the port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, flag: str) -> Address:
    """Return the listener address in `HOST:PORT`. An empty host means all addresses.

    `flag` names the value in errors. Raises BadRequest.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    is_port = port.isascii() and port.isdigit() and int(port) <= _MAX_PORT
    if not colon or not is_port or (":" in bare) != bracketed:
        raise BadRequest(f"{flag}: {text!r} is not HOST:PORT, for example 127.0.0.1:2222")
    return Address(bare or "0.0.0.0", int(port))  # noqa: S104  an empty host means all addresses


def parse_public_address(text: str, flag: str) -> Address:
    """Return the name or address that users type, from `NAME` or `NAME:PORT`.

    The port is 0 if the text has none. Raises BadRequest.
    """
    match = _HOST.fullmatch(text)
    port = int(match["port"] or 0) if match else -1
    if match is None or not 0 <= port <= _MAX_PORT or (match["port"] and not port):
        raise BadRequest(f"{flag}: {text!r} is not NAME or NAME:PORT, for example box.example.net")
    return Address(match["name"] or match["six"], port)


def parse_networks(text: str, flag: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks of a comma-separated list. Raises BadRequest."""
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise BadRequest(f"{flag}: {error}; give networks, for example 192.0.2.0/24") from None


def parse_proxies(text: str, flag: str) -> str:
    """Return a comma-separated list of addresses and networks without spaces.

    Rejects host names and `*`: they would trust other hosts by mistake. Raises BadRequest.
    """
    if not parse_networks(text, flag):
        raise BadRequest(f"{flag} is empty; give the proxy's address, for example 127.0.0.1")
    return ",".join(part.strip() for part in text.split(",") if part.strip())
