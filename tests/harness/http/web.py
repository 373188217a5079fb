"""Fixture `web`: the real HTTP API over boxes that are plain local processes.

Everything is real except the backend (see harness/frontdoor.py) and the stores. Control state,
metadata and blocks of drives are in memory. Requests go through a socket on loopback.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest_asyncio

from boxd.backends.run_directories import RunDirectories
from boxd.boxes.lifecycle.lifecycle import Lifecycle, LifecycleOptions
from boxd.boxes.limits.access_policy import AccessPolicy
from boxd.boxes.limits.admission import Limits
from boxd.boxes.limits.tier_limits import load_tiers
from boxd.boxes.limits.tiers import Tiers
from boxd.clock import SystemClock
from boxd.config import Address, Config
from boxd.errors import Conflict, Unavailable
from boxd.http.app import Api
from boxd.http.server.serve import ApiServer
from boxd.mcp.service import McpService
from boxd.model.usage import DriveUse
from boxd.principal import Principal
from boxd.rendering import program
from boxd.sandbox.sandbox import Sandbox
from boxd.tunnel.registry import TunnelRegistry
from tests.doubles.block_store import MemoryBlocks
from tests.doubles.control_store import MemoryStore
from tests.doubles.meta_store import MemoryMeta
from tests.doubles.meta_volume import MemoryVolume
from tests.harness.ssh.frontdoor import (
    PlainCatalog,
    ProcessBackend,
    assembled,
    composed,
    make_keys,
)
from tests.harness.streams import cut
from wrkfs.fs import Filesystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from boxd.operations import Operations
    from boxd.secret import Secret

ALICE = Principal("SHA256:alice", None, "ssh_key")
BOB = Principal("SHA256:bob", None, "ssh_key")
PREVIEW_DOMAIN = "preview.internal"
RENDERER = 990_003
"""Id of the user that renders documents."""


@dataclass
class Volume:
    """One drive: its parts, and the Filesystem that the API uses."""

    meta: MemoryVolume
    blocks: MemoryBlocks
    fs: Filesystem


class MemoryDrives:
    """Drives in memory, by owner and workspace."""

    def __init__(self) -> None:
        self.volumes: dict[tuple[str, str | None], Volume] = {}
        self.given: dict[tuple[str, str | None], Filesystem] = {}
        """Drives on other stores, which take precedence."""

    @asynccontextmanager
    async def use(
        self, owner: str, workspace: str | None, *, create: bool
    ) -> AsyncIterator[Filesystem | None]:
        """Yield the drive's Filesystem. With `create`, create a missing drive."""
        place = (owner, workspace)
        if place in self.given:
            yield self.given[place]
        elif create or place in self.volumes:
            yield (await self.volume(owner, workspace)).fs
        else:
            yield None

    async def sizes(self) -> dict[str, int]:
        """Return no sizes."""
        return {}

    async def volume(self, owner: str = ALICE.owner, workspace: str | None = None) -> Volume:
        """Return the drive with its parts."""
        place = (owner, workspace)
        if place not in self.volumes:
            volume, blocks = MemoryVolume(), MemoryBlocks()
            meta = MemoryMeta(volume)
            await meta.start()
            self.volumes.setdefault(place, Volume(volume, blocks, Filesystem(meta, blocks)))
        return self.volumes[place]

    async def usage(self, owner: str) -> dict[str | None, DriveUse]:
        """Return the use of each drive of an owner."""
        found = {}
        for (whose, workspace), volume in self.volumes.items():
            if whose == owner:
                use = await volume.fs.statfs()
                found[workspace] = DriveUse(use.bytes_used, None, use.inodes_used, None)
        return found

    def closing(self, owner: str, workspace: str) -> AbstractContextManager[None]:
        """Do nothing: no other process uses the drive."""
        return nullcontext()

    async def is_empty(self, owner: str, workspace: str) -> bool:
        """Return whether the drive has no files."""
        use = (await self.usage(owner)).get(workspace)
        return use is None or use.files == 0

    async def remove(self, owner: str, workspace: str) -> None:
        """Remove the drive."""
        volume = self.volumes.pop((owner, workspace), None)
        if volume is not None:
            await volume.fs.close()

    async def close(self) -> None:
        """Close all drives."""
        for volume in self.volumes.values():
            await volume.fs.close()
        for fs in self.given.values():
            await fs.close()


@dataclass
class Web:
    """A served API and the parts behind it."""

    api: Api
    server: ApiServer
    address: Address
    operations: Operations
    lifecycle: Lifecycle
    backend: ProcessBackend
    store: MemoryStore
    drives: MemoryDrives
    mcp: McpService
    key: str
    clients: list[httpx.AsyncClient] = field(default_factory=list)
    connections: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Return the root URL of the API."""
        return f"http://{self.address}"

    async def new_key(
        self,
        owner: Principal = ALICE,
        *,
        scope: str | None = None,
        ttl: timedelta | None = None,
        name: str | None = None,
    ) -> str:
        """Create an API key of an owner."""
        name = name or f"key{len(await self.operations.keys.list_keys(owner))}"
        if scope is not None:
            with suppress(Conflict):
                await self.operations.workspaces.create_workspace(owner, scope)
        _, secret = await self.operations.keys.create_key(owner, name, scope=scope, ttl=ttl)
        return _revealed(secret)

    def client(self, key: str | None = None, **headers: str) -> httpx.AsyncClient:
        """Return a client with this API key (default: the owner's first one)."""
        shown = {"authorization": f"Bearer {key or self.key}"} | headers
        client = httpx.AsyncClient(base_url=self.url, headers=shown, timeout=60)
        self.clients.append(client)
        return client

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a raw connection, which ends with the service."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        self.connections.append(writer)
        return reader, writer


SANITISE = partial(program.run, sandbox=Sandbox(RENDERER, "renderer"))


def _revealed(secret: Secret) -> str:
    return secret.reveal()


@asynccontextmanager
async def serve_web(
    root: Path, *, with_drives: bool = True, config: Config | None = None
) -> AsyncIterator[Web]:
    """Run the API below `root` within the context. `config` has the settings of HTTP."""
    keys = make_keys(root)
    bind = RunDirectories(root / "boxes").bind
    tunnels = TunnelRegistry(keys / "tunnel_ed25519", bind, _no_requests)
    backend, store, clock = ProcessBackend(root), MemoryStore(), SystemClock()
    catalog = PlainCatalog(root)
    tiers, access_policy = Tiers(store, load_tiers()), AccessPolicy(store, clock)
    assembly = assembled(root, tunnels, backend, catalog)
    lifecycle = Lifecycle(
        store=store,
        assembly=assembly,
        catalog=catalog,
        clock=clock,
        limits=Limits(tier_of=tiers.of),
        options=LifecycleOptions(
            default_image="debian",
            automount=False,
            global_names=config is not None and config.names == "global",
        ),
    )
    drives = MemoryDrives()
    operations = composed(
        store,
        lifecycle,
        catalog,
        tiers,
        access_policy,
        keys,
        drives=drives if with_drives else None,
    )
    await lifecycle.start()
    await lifecycle.agents.close()  # Tests stop and end agents on purpose.
    if config is None:
        config = Config(state_dir=root, api_addr=Address("127.0.0.1", 0))
    config = replace(config, api_hosts=(*config.api_hosts, "api.test"))
    mcp = McpService(operations)
    api = Api(operations, config, mcp, sanitise=SANITISE)
    server = ApiServer(api, config)
    web: Web | None = None
    try:
        address = await server.start()
        web = Web(api, server, address, operations, lifecycle, backend, store, drives, mcp, "")
        web.key = await web.new_key()
        yield web
    finally:
        for client in web.clients if web is not None else ():
            await client.aclose()
        for writer in web.connections if web is not None else ():
            cut(writer)
        await server.close()
        await mcp.close()
        await lifecycle.close(stop_boxes=True)
        await operations.close()
        await backend.close()
        await drives.close()


async def _no_requests(box_id: str, verb: str, params: dict[str, object]) -> dict[str, object]:
    raise Unavailable(f"box {box_id} asked for {verb}, which there is not here")


@pytest_asyncio.fixture
async def web() -> AsyncIterator[Web]:
    """Yield a served API.

    Its directory has a short name, because paths of Unix sockets hold at most 107 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name)) as served:
            yield served


@pytest_asyncio.fixture
async def web_without_drives() -> AsyncIterator[Web]:
    """Yield an API like `web`, on a host where drives are not enabled."""
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name), with_drives=False) as served:
            yield served


@pytest_asyncio.fixture
async def previews() -> AsyncIterator[Web]:
    """Yield an API like `web`, with preview hosts for ports of boxes."""
    config = Config(api_addr=Address("127.0.0.1", 0), preview_domain=PREVIEW_DOMAIN)
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name), config=config) as served:
            yield served
