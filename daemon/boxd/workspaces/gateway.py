"""One box's way to the stores of its volume, for a drive that the box mounts itself.

Two forwards in the box's tunnel: one leads to the metadata database, as the role of this volume and
no other; one to the object store, which knows the box's credential and confines it to the volume's
prefix. The box holds a token and that credential; both mean nothing when the gateway is closed.
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
from boxd.workspaces import postgres_login
from wrkfs.config import ConfigError
from wrkfs.meta.postgres.addresses import addresses, place

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from boxd.tunnel.channel import ByteReader, ByteWriter, Offer, Tunnel
    from wrkfs.config import VolumeConfig

META_CONNECTIONS = 24
"""At once, of one box: the role may have 32, and other mounts of the volume need some."""
BLOCK_CONNECTIONS = 48
_WAYS = ((protocol.DRIVE_META, META_CONNECTIONS), (protocol.DRIVE_BLOCKS, BLOCK_CONNECTIONS))
LOGIN_S = 15.0
"""From the first byte until the database is ready."""
DIAL_S = 5.0
CHUNK = 128 * 1024

_log = logging.getLogger(__name__)


class Gateway:
    """See the module.

    Critical sections: `offer` and `close` run under a lock. `_taken` holds the tasks of connections
    and `_keys` what cancels theirs; both change between awaits only.
    """

    def __init__(self, box_id: str, volume: VolumeConfig, token: Secret) -> None:
        """Unavailable when a store of the volume cannot be reached from here for a box."""
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
                "sslmode=require: run a proxy that speaks TLS beside the service, or leave "
                "--mount-in-box away"
            )
        try:
            self._places = [place(one) for one in addresses(volume.meta_dsn)]
        except (ConfigError, ValueError) as error:
            raise Unavailable(f"the metadata database: {error}") from None
        endpoint = urlsplit(volume.store.endpoint)
        if endpoint.scheme != "http" or endpoint.hostname is None:
            raise Unavailable(
                "boxes that mount their drives themselves need an object store that answers at "
                "http://, not https://: a name that a certificate is for means nothing in a box"
            )
        self._store = endpoint.hostname, endpoint.port or 80
        self._lock = asyncio.Lock()
        self._closed = False
        self._tunnel: Tunnel | None = None
        self._offers: list[Offer] = []
        self._taken: set[asyncio.Task[None]] = set()
        self._counts = {protocol.DRIVE_META: 0, protocol.DRIVE_BLOCKS: 0}
        self._keys: set[bytes] = set()

    @property
    def database(self) -> str:
        """Name of the metadata database."""
        return self._database

    async def offer(self, tunnel: Tunnel) -> None:
        """Opens the way in a tunnel, if it is not open there. Raises Unavailable."""
        async with self._lock:
            if self._closed or self._tunnel is tunnel:
                return
            offers: list[Offer] = []
            try:
                for path, most in _WAYS:
                    offers.append(await tunnel.offer(path, self._taker(path, most)))
            except BaseException:
                for offer in offers:
                    offer.close()
                raise
            self._tunnel, self._offers = tunnel, offers

    async def close(self) -> None:
        """Ends the way with everything that goes over it."""
        async with self._lock:
            self._closed = True
            offers, self._offers = self._offers, []
            for offer in offers:
                offer.close()
            taken = list(self._taken)
            for task in taken:
                task.cancel()
            await asyncio.gather(*taken, return_exceptions=True)

    def _taker(
        self, path: str, most: int
    ) -> Callable[[ByteReader, ByteWriter], Coroutine[Any, Any, None]]:
        serve = self._meta if path == protocol.DRIVE_META else self._blocks

        async def take(reader: ByteReader, writer: ByteWriter) -> None:
            task = asyncio.current_task()
            if task is None or self._closed or self._counts[path] >= most:
                writer.close()
                return
            self._taken.add(task)
            self._counts[path] += 1
            try:
                await serve(reader, writer)
            except (OSError, EOFError, TimeoutError) as error:
                _log.debug("box %s: a connection to a store ended: %s", self._box_id, error)
            except asyncio.CancelledError:
                _log.debug("box %s: a connection to a store was cut", self._box_id)
            except Exception:
                # The tunnel must not end because of one connection.
                _log.exception("a connection of box %s to a store failed", self._box_id)
            finally:
                self._taken.discard(task)
                self._counts[path] -= 1
                writer.close()

        return take

    async def _blocks(self, reader: ByteReader, writer: ByteWriter) -> None:
        async with asyncio.timeout(DIAL_S):
            near = await asyncio.open_connection(*self._store)
        await _relay((reader, writer), near)

    async def _meta(self, reader: ByteReader, writer: ByteWriter) -> None:
        try:
            async with asyncio.timeout(LOGIN_S):
                wish = await postgres_login.read_startup(reader, writer)
                if isinstance(wish, postgres_login.Cancel):
                    await self._cancel(wish.key)
                    return
                await postgres_login.check_token(
                    reader, writer, wish, self._role, self._database, self._token
                )
                near, said = await self._dial(wish)
        except postgres_login.Refused as error:
            writer.write(error.answer)
            await writer.drain()
            return
        key = postgres_login.cancel_key(said)
        if key is not None:
            self._keys.add(key)
        try:
            writer.write(said)
            await _relay((reader, writer), near)
        finally:
            self._keys.discard(key or b"")

    async def _dial(
        self, wish: postgres_login.Startup
    ) -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], bytes]:
        """A connection to the first address that answers, logged in."""
        failure: OSError = OSError("no address")
        for where in self._places:
            try:
                near = await _connected(where)
            except OSError as error:
                failure = error
                continue
            try:
                said = await postgres_login.login(*near, wish, self._role, self._password)
            except BaseException:
                near[1].transport.abort()
                raise
            return near, said
        raise failure

    async def _cancel(self, key: bytes) -> None:
        """Cancels what a connection of this very gateway does."""
        if key not in self._keys:
            return
        for where in self._places:
            with suppress(OSError):
                _, writer = await _connected(where)
                writer.write(postgres_login.cancel_request(key))
                await writer.drain()
                writer.close()


async def _connected(
    where: Path | tuple[str, int],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(DIAL_S):
        if isinstance(where, Path):
            return await asyncio.open_unix_connection(where)
        return await asyncio.open_connection(*where)


async def _relay(
    far: tuple[ByteReader, ByteWriter], near: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Passes bytes both ways until both have ended, or one fails."""
    pumps = [
        asyncio.create_task(_pump(far[0], near[1])),
        asyncio.create_task(_pump(near[0], far[1])),
    ]
    try:
        await asyncio.gather(*pumps)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        near[1].transport.abort()


async def _pump(source: ByteReader, target: ByteWriter) -> None:
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()
    with suppress(OSError):
        target.write_eof()
