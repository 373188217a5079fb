"""The addresses of a metadata database. A connection string may name several, for failover."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from wrkfs.config import ConfigError

PORT = 5432
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
"""A request that every server answers with one byte, before any login."""

MOST = 16
"""Maximum number of addresses in one connection string."""


def addresses(dsn: str) -> tuple[str, ...]:
    """Return one connection string for each address, in order. Raises ConfigError.

    The addresses are separated by commas. They are in front of the path (`//user@a:1,b:2/name`) or
    in the parameters `host` and `port`.
    """
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query))
    if "host" in query:
        hosts = query["host"].split(",")
        ports = query.get("port", "").split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        if len(ports) != len(hosts):
            raise ConfigError("the database's address needs one port, or as many ports as hosts")
        split = []
        for host, port in zip(hosts, ports, strict=True):
            single = {**query, "host": host} | ({"port": port} if port else {})
            split.append(urlunsplit(parts._replace(query=urlencode(single))))
    else:
        user, at, places = parts.netloc.rpartition("@")
        split = [
            urlunsplit(parts._replace(netloc=user + at + place)) for place in places.split(",")
        ]
    if len(split) > MOST:
        raise ConfigError(f"the database's address names more than {MOST} hosts")
    return tuple(split)


def place(address: str) -> Path | tuple[str, int]:
    """Return the target of a single address: the path of a Unix socket, or host and port."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    host = query.get("host") or parts.hostname or "localhost"
    port = int(query.get("port") or parts.port or PORT)
    return Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port)


async def knock(address: str) -> None:
    """Wait until the server answers: one round trip without a login. Raises OSError."""
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
