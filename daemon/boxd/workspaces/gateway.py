"""Connects a box that mounts its drive itself to the stores of its volume.

The tunnel of the box carries two forwards. One leads to the metadata database, as the role of this
volume only. The other leads to the object store, which limits the box's credential to the prefix of
the volume. The box holds a token and that credential. Both are useless after the gateway closes.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from box_guest import protocol
from boxd.errors import Unavailable
from boxd.secret import Secret
from boxd.tasks import BackgroundTasks
from boxd.workspaces import postgres_login
from wrkfs.config import ConfigError
from wrkfs.meta.postgres.addresses import addresses, place

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from boxd.tunnel.channel import ByteReader, ByteWriter, Offer, Tunnel
    from wrkfs.config import VolumeConfig

META_CONNECTIONS = 24
"""Connections of a box. The role may have 32, and other mounts of the volume need some, too."""
BLOCK_CONNECTIONS = 48
_FORWARDS = ((protocol.DRIVE_META, META_CONNECTIONS), (protocol.DRIVE_BLOCKS, BLOCK_CONNECTIONS))
LOGIN_S = 15.0
"""Seconds from the first byte until the database is ready."""
DIAL_S = 5.0
CHUNK = 128 * 1024

_log = logging.getLogger(__name__)


class Gateway:
    """The connections of one box to the stores of its volume.

    Critical sections: `offer` and `close` run under a lock. `_connections` holds the tasks of open
    connections, and `_keys` the keys that cancel their statements. Both change between awaits only.
    """

    def __init__(self, box_id: str, volume: VolumeConfig, token: Secret) -> None:
        """Prepare one box. Raises Unavailable if boxes cannot use a store of the volume."""
        self._box_id = box_id
        self._role = volume.schema
        self._token = token
        parts = urlsplit(volume.meta_dsn)
        query = parse_qs(parts.query)
        self._database = unquote(parts.path.lstrip("/")) or query.get("dbname", [self._role])[0]
        self._password = Secret(unquote(parts.password or ""))
        if query.get("sslmode", ["prefer"])[0] not in ("disable", "allow", "prefer"):
            raise Unavailable(
                "boxes that mount their drives themselves need a metadata database without "
                "sslmode=require: run a proxy beside the service that adds TLS, or omit "
                "--mount-in-box"
            )
        try:
            self._addresses = [place(address) for address in addresses(volume.meta_dsn)]
        except (ConfigError, ValueError) as error:
            raise Unavailable(f"the metadata database: {error}") from None
        endpoint = urlsplit(volume.store.endpoint)
        if endpoint.scheme != "http" or endpoint.hostname is None:
            raise Unavailable(
                "boxes that mount their drives themselves need an object store with an http:// "
                "endpoint, not https://: a box cannot verify the certificate of the store. Run a "
                "proxy that adds TLS beside the service, or omit --mount-in-box"
            )
        self._store = endpoint.hostname, endpoint.port or 80
        self._lock = asyncio.Lock()
        self._closed = False
        self._tunnel: Tunnel | None = None
        self._offers: list[Offer] = []
        self._connections = BackgroundTasks()
        self._counts = {protocol.DRIVE_META: 0, protocol.DRIVE_BLOCKS: 0}
        self._keys: set[bytes] = set()

    @property
    def database(self) -> str:
        """The name of the metadata database."""
        return self._database

    async def offer(self, tunnel: Tunnel) -> None:
        """Open the forwards in a tunnel, unless they are already open. Raises Unavailable."""
        async with self._lock:
            if self._closed or self._tunnel is tunnel:
                return
            offers: list[Offer] = []
            try:
                for path, limit in _FORWARDS:
                    offers.append(await tunnel.offer(path, self._handler(path, limit)))
            except BaseException:
                for offer in offers:
                    offer.close()
                raise
            self._tunnel, self._offers = tunnel, offers

    async def close(self) -> None:
        """Close the forwards with all their connections."""
        async with self._lock:
            self._closed = True
            offers, self._offers = self._offers, []
            for offer in offers:
                offer.close()
            await self._connections.close()

    def _handler(
        self, path: str, limit: int
    ) -> Callable[[ByteReader, ByteWriter], Coroutine[Any, Any, None]]:
        serve = self._meta if path == protocol.DRIVE_META else self._blocks

        async def handle(reader: ByteReader, writer: ByteWriter) -> None:
            if self._closed or self._counts[path] >= limit:
                writer.close()
                return
            self._counts[path] += 1
            try:
                await self._connections.start(
                    serve(reader, writer), name="connection to a store", awaited=True
                )
            except (OSError, EOFError, TimeoutError) as error:
                _log.debug("box %s: a connection to a store ended: %s", self._box_id, error)
            except asyncio.CancelledError:
                _log.debug("box %s: a connection to a store was lost", self._box_id)
            except Exception:
                # A failure of one connection must not end the tunnel.
                _log.exception("a connection of box %s to a store failed", self._box_id)
            finally:
                self._counts[path] -= 1
                writer.close()

        return handle

    async def _blocks(self, reader: ByteReader, writer: ByteWriter) -> None:
        async with asyncio.timeout(DIAL_S):
            server = await asyncio.open_connection(*self._store)
        await _relay((reader, writer), server)

    async def _meta(self, reader: ByteReader, writer: ByteWriter) -> None:
        try:
            async with asyncio.timeout(LOGIN_S):
                request = await postgres_login.read_startup(reader, writer)
                if isinstance(request, postgres_login.Cancel):
                    await self._cancel(request.key)
                    return
                await postgres_login.check_token(
                    reader, writer, request, self._role, self._database, self._token
                )
                server, greeting = await self._dial(request)
        except postgres_login.Refused as error:
            writer.write(error.answer)
            await writer.drain()
            return
        key = postgres_login.cancel_key(greeting)
        if key is not None:
            self._keys.add(key)
        try:
            writer.write(greeting)
            await _relay((reader, writer), server)
        finally:
            self._keys.discard(key or b"")

    async def _dial(
        self, request: postgres_login.Startup
    ) -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], bytes]:
        """Connect to the first address that answers, and log in."""
        failure: OSError = OSError("no address")
        for address in self._addresses:
            try:
                server = await _connect(address)
            except OSError as error:
                failure = error
                continue
            try:
                greeting = await postgres_login.login(*server, request, self._role, self._password)
            except BaseException:
                server[1].transport.abort()
                raise
            return server, greeting
        raise failure

    async def _cancel(self, key: bytes) -> None:
        """Cancel the statement of a connection, if it belongs to this gateway."""
        if key not in self._keys:
            return
        for address in self._addresses:
            with suppress(OSError):
                _, writer = await _connect(address)
                writer.write(postgres_login.cancel_request(key))
                await writer.drain()
                writer.close()


async def _connect(
    address: Path | tuple[str, int],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(DIAL_S):
        if isinstance(address, Path):
            return await asyncio.open_unix_connection(address)
        return await asyncio.open_connection(*address)


async def _relay(
    client: tuple[ByteReader, ByteWriter], server: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Pass bytes both ways until both directions have ended, or one fails."""
    pumps = [
        asyncio.create_task(_pump(client[0], server[1])),
        asyncio.create_task(_pump(server[0], client[1])),
    ]
    try:
        await asyncio.gather(*pumps)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        server[1].transport.abort()


async def _pump(source: ByteReader, target: ByteWriter) -> None:
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()
    with suppress(OSError):
        target.write_eof()
