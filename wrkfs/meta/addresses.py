"""The addresses of a metadata database: a connection string may name several, for fail-over."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from wrkfs.config import ConfigError

PORT = 5432
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
"""What every server answers with one byte, before anybody logs in."""

MOST = 16
"""Addresses that one connection string may name."""


def addresses(dsn: str) -> tuple[str, ...]:
    """One connection string for each address, in order.

    Addresses stand, separated by commas, before the path (`//user@a:1,b:2/name`) or in the
    parameters `host` and `port`. Raises ConfigError.
    """
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query))
    if "host" in query:
        hosts = query["host"].split(",")
        ports = query.get("port", "").split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        if len(ports) != len(hosts):
            raise ConfigError("the database's address: as many ports as hosts, or one")
        split = []
        for host, port in zip(hosts, ports, strict=True):
            one = {**query, "host": host} | ({"port": port} if port else {})
            split.append(urlunsplit(parts._replace(query=urlencode(one))))
    else:
        user, at, places = parts.netloc.rpartition("@")
        split = [
            urlunsplit(parts._replace(netloc=user + at + place)) for place in places.split(",")
        ]
    if len(split) > MOST:
        raise ConfigError(f"the database's address: at most {MOST} hosts")
    return tuple(split)


def place(address: str) -> Path | tuple[str, int]:
    """Where a single address leads: a Unix socket, or host and port."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    host = query.get("host") or parts.hostname or "localhost"
    port = int(query.get("port") or parts.port or PORT)
    return Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port)


async def knock(address: str) -> None:
    """Returns when a server answers there: one round trip, no login. Raises OSError."""
    where = place(address)
    if isinstance(where, Path):
        reader, writer = await asyncio.open_unix_connection(where)
    else:
        reader, writer = await asyncio.open_connection(*where)
    try:
        writer.write(SSL_REQUEST)
        if not await reader.read(1):
            raise ConnectionError("the database closed the connection")
    finally:
        writer.transport.abort()
