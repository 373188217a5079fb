"""Composition root: alone knows which concrete part stands behind each seam, and in which order
they start and stop.

Each started part puts its end on one stack, so that a start that fails, or is cancelled, takes
back what was done before, and `stop` ends everything in the opposite order.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from boxd.api.app import Api
from boxd.api.serve import ApiServer
from boxd.backends.choose import choose
from boxd.backends.hostnames import HostNames
from boxd.backends.origins import Origins
from boxd.backends.records import Records
from boxd.backup.keyfile import read_key
from boxd.backup.making import BackupJob
from boxd.backup.places import open_target
from boxd.backup.schedule import BackupSchedule
from boxd.boxes.assembly import Assembly, Places
from boxd.boxes.gate import Gate
from boxd.boxes.hostlimits import check_floor, host_limits
from boxd.boxes.lifecycle import Lifecycle
from boxd.boxes.policy import Policy
from boxd.boxes.quota import DEFAULT_TIER, TIERS_FILE, load_tiers
from boxd.boxes.sources import Sources
from boxd.boxes.tiers import Tiers
from boxd.clock import SystemClock
from boxd.config import Address
from boxd.embedded.files import write_private
from boxd.embedded.objectserver.config import BUCKET, REGION
from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.statedir import hold_lock, make_private
from boxd.errors import BadRequest, BoxdError, Unavailable, UnknownImage
from boxd.frontdoor.adminkeys import AdminKeys
from boxd.frontdoor.commands.registry import cli
from boxd.frontdoor.server import DRAIN_S, FrontDoor
from boxd.images import runtime
from boxd.images.catalog import Catalog
from boxd.mcp.plane import Plane
from boxd.names.preview import example_url
from boxd.operations import Operations
from boxd.secret import random_hex
from boxd.store.postgres import PostgresStore
from boxd.tunnel.registry import TunnelRegistry, new_identity
from boxd.workspaces.attach import HostDrives
from boxd.workspaces.credentials import ExternalStore, StoreTarget
from boxd.workspaces.drives import WorkspaceDrives
from boxd.workspaces.handout import Row, credentials_text, listing, restored
from boxd.workspaces.inbox import BoxDrives
from boxd.workspaces.keeper import Keeper
from boxd.workspaces.mounts import Mounts
from boxd.workspaces.pool import DrivePool
from boxd.workspaces.provision import Provisioner
from boxd.workspaces.seal import Sealer
from boxd.workspaces.volumes import Volumes
from boxd.workspaces.watchdog import DatabaseWatchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from boxd.backends.interface import Backend
    from boxd.boxes.hostlimits import HostLimits
    from boxd.config import Config
    from boxd.images.importer import Imported
    from boxd.model.catalog import Image

INSTANCE = "instance"
"""Setting in the control database, and file in the state directory: they belong together."""
BESIDE_S = 5.0
"""Seconds in which the database of a service that runs must answer."""
QUICK_DRAIN = 1.0
"""Seconds that open channels get when their boxes are about to stop anyway."""

_log = logging.getLogger(__name__)


class StopMode(Enum):
    """What `stop` leaves running."""

    EVERYTHING = "everything"
    """Nothing: boxes are stopped and start again from their disks."""
    DAEMON = "daemon"
    """Boxes and mounts, for the next daemon to adopt."""


class Service:
    """One installation. `start` once, `stop` once; `progress` is told what takes long."""

    def __init__(self, config: Config, progress: Callable[[str], None]) -> None:
        self._config = config
        self._progress = progress
        self._stack = AsyncExitStack()
        self._mode = StopMode.DAEMON
        self._known_tiers = load_tiers()
        self._administrators = AdminKeys(config.admin_keys)
        self._door: FrontDoor | None = None
        self._operations: Operations | None = None
        self._drives: HostDrives | BoxDrives
        self.ssh_addr: Address | None = None
        self.api_addr: Address | None = None

    async def start(self, *, serve: bool = True) -> None:
        """Starts everything; `serve` off: only what is needed to stop boxes (`boxd down`).

        Raises Unavailable with a remedy; what was started before is then stopped.
        """
        try:
            await self._start(serve=serve)
        except BaseException:
            await self._stack.aclose()
            raise

    async def stop(self, mode: StopMode) -> None:
        """Ends what `start` began, in the opposite order. Idempotent."""
        self._mode = mode
        await self._stack.aclose()

    def reread(self) -> None:
        """Reads anew what stands in files that may change; see `AdminKeys.reread`."""
        self._administrators.reread()

    def welcome(self) -> list[str]:
        """What to type next."""
        if self._door is None or self.ssh_addr is None:
            raise RuntimeError("not serving")
        host, port = _reachable(self.ssh_addr.host), self.ssh_addr.port
        if (typed := self._config.ssh_host) is not None:
            host, port = typed.host, typed.port or port
        lines = [
            "",
            f"boxd serves; its state is in {self._config.state_dir}",
            f"  SSH host key   {_fingerprint(self._door.host_key)}",
            f"  a box          ssh -p {port} dev@{host}",
            f"  help           ssh -p {port} cli@{host} help",
            f"  an API key     KEY=$(ssh -p {port} cli@{host} apikeys create laptop)",
        ]
        if self.api_addr is not None:
            url = f"http://{_bracketed(_reachable(self.api_addr.host))}:{self.api_addr.port}"
            lines.append(f'  the drive      curl -H "Authorization: Bearer $KEY" {url}/v1/wrk/')
            if (domain := self._config.preview_domain) is not None:
                lines.append(
                    f"  a box's port   {example_url(domain, self.api_addr.port)}/?key=$KEY"
                )
        return [*lines, "Ctrl-C stops everything; boxes, keys and files are there again next time."]

    async def _start(self, *, serve: bool) -> None:
        config, state = self._config, self._config.state_dir
        backups = _backups(config) if serve else None
        if serve:  # what only stops boxes asks for no limits
            self._known_tiers = load_tiers(state / TIERS_FILE)
            self._administrators.load()
        make_private(state)
        if serve:
            check_floor(state, config.min_free)
        self._stack.callback(os.close, hold_lock(state))
        keys = state / "keys"
        make_private(keys)
        store, volumes = await self._start_stores(keys, serve=serve)
        existing = {box.backend for box in await store.all_boxes()}
        # Who only stops boxes makes no volume for new ones.
        backend = choose(config if serve else replace(config, boxes_size=0), existing, serve=serve)
        self._progress("Preparing the host for boxes")
        # Before the setup: one that is refused, or broken off, has changed the host in part.
        self._stack.push_async_callback(backend.close)
        await backend.setup()
        await _check_pairing(state, store, backend)
        catalog = _catalog(config)
        mounts = Mounts(
            state / "mounts",
            on_restart=self._mount_restarted,
            cache=config.cache_dir or state / "cache",
            cache_size=config.cache_size,
        )
        self._stack.push_async_callback(self._close_mounts, mounts)
        await mounts.adopt()
        tunnels = TunnelRegistry(
            _tunnel_key(keys), self._on_request, self._on_activity, self._on_misbehaviour
        )
        inside = not backend.capabilities().attaches_drives
        if inside:
            self._drives = await self._box_drives(volumes, tunnels, keys)
        else:
            self._drives = HostDrives(volumes, mounts, backend)
        self._stack.push_async_callback(self._drives.close)
        guest = state / "runtime"
        if serve:
            build = partial(runtime.build, guest, self._progress, drive=inside)
            guest = await asyncio.to_thread(build)
            await self._build_default_image(catalog, backend)
            ahead = asyncio.create_task(self._expect_images(catalog, backend))
            self._stack.push_async_callback(_end, ahead)
        operations = await self._start_core(
            store, backend, catalog, volumes, guest, tunnels, serve=serve
        )
        if serve:
            await self._open_doors(operations, keys)
        if backups is not None:
            schedule = BackupSchedule(backups(self._dsn), config.backup_every)
            schedule.start()
            self._stack.push_async_callback(schedule.close)

    async def _box_drives(self, volumes: Volumes, tunnels: TunnelRegistry, keys: Path) -> BoxDrives:
        """Drives of a backend whose boxes mount them themselves."""
        shared = self._issuer.admin.access_key if isinstance(self._issuer, ExternalStore) else ""
        drives = BoxDrives(
            volumes,
            tunnels,
            self._issuer,
            Sealer(keys / "master.key"),
            self._config.state_dir / "grants",
            shared_key=shared,
        )
        await drives.start()
        tunnels.on_up = drives.tunnel_up
        return drives

    async def _start_core(
        self,
        store: PostgresStore,
        backend: Backend,
        catalog: Catalog,
        volumes: Volumes,
        guest: Path,
        tunnels: TunnelRegistry,
        *,
        serve: bool,
    ) -> Operations:
        tiers, gate = await self._decisions(store, clock := SystemClock())
        assembly = Assembly(
            backend=backend,
            tunnels=tunnels,
            drives=self._drives,
            catalog=catalog,
            places=Places(self._config.state_dir / "boxes", guest, tunnels.public_key),
            new_identity=new_identity,
        )
        lifecycle = Lifecycle(
            store=store,
            assembly=assembly,
            catalog=catalog,
            tier_of=tiers.of,
            clock=clock,
            default_image=self._config.default_image,
            automount=self._config.workspace_automount,
            policy=Policy(
                idle_timeout=self._config.idle_timeout,
                idle_reap=self._config.idle_reap,
                grace=self._config.grace,
            ),
            templates=self._config.templates,
            sources=Sources(self._config.trusted_sources),
            host=self._host_limits(backend),
            previews=self._config.preview_domain is not None,
        )
        self._lifecycle = lifecycle
        self._stack.push_async_callback(self._close_lifecycle)
        self._progress("Looking after the boxes")
        await lifecycle.start(stopping=not serve)
        pool = DrivePool(volumes, clock)
        self._stack.push_async_callback(pool.close)
        operations = Operations(
            store=store,
            lifecycle=lifecycle,
            catalog=catalog,
            drives=WorkspaceDrives(volumes, pool, self._drives),
            tier_of=tiers.of,
            tiers=tiers,
            gate=gate,
            clock=clock,
            sealer=Sealer(self._config.state_dir / "keys" / "master.key"),
            ssh_host=_typed(self._config),
        )
        self._operations = operations
        self._stack.push_async_callback(operations.close)
        return operations

    async def _decisions(self, store: PostgresStore, clock: SystemClock) -> tuple[Tiers, Gate]:
        """What the operator decided on single owners."""
        tiers = Tiers(store, self._known_tiers)
        gate = Gate(store, clock, self._administrators)
        await tiers.start()
        await gate.start()
        return tiers, gate

    def _host_limits(self, backend: Backend) -> HostLimits:
        return host_limits(
            self._config.state_dir,
            running=self._config.max_running,
            memory=self._config.max_memory,
            free=self._config.min_free,
            ceiling=backend.capabilities().memory_ceiling,
        )

    async def _open_doors(self, operations: Operations, keys: Path) -> None:
        plane = Plane(operations)
        self._stack.push_async_callback(plane.close)
        self._door = FrontDoor(
            operations,
            self._config.ssh_addr,
            keys,
            trusted=self._config.trusted_sources,
            console=cli(plane.serve_lines),
            shown_as=self._config.ssh_host,
            administrators=self._administrators,
            preview_domain=self._config.preview_domain if self._config.api_addr else None,
        )
        await self._door.start()
        self._stack.push_async_callback(self._close_door)
        self.ssh_addr = Address(self._config.ssh_addr.host, self._door.port)
        if self._config.api_addr is not None:
            server = ApiServer(Api(operations, self._config, plane), self._config)
            self.api_addr = await server.start()
            self._stack.push_async_callback(server.close)

    async def _start_stores(self, keys: Path, *, serve: bool) -> tuple[PostgresStore, Volumes]:
        """Control database and volumes, on embedded or external servers."""
        config = self._config
        dsn = config.meta_dsn
        if dsn is None:
            self._progress("Starting PostgreSQL")
            postgres = EmbeddedPostgres(config.state_dir / "postgres", on_crash=_log.error)
            dsn = await postgres.start()
            self._stack.push_async_callback(postgres.stop)
        self._dsn = dsn
        store = PostgresStore(dsn)
        self._stack.push_async_callback(store.close)
        await store.start()
        issuer: EmbeddedObjectServer | ExternalStore
        prefixes: ExternalStore | None = None
        if config.store_file is None:
            self._progress("Starting the object server")
            issuer = EmbeddedObjectServer(config.state_dir / "objects", on_crash=_log.error)
            endpoint = await issuer.start()
            self._stack.push_async_callback(issuer.stop)
            target = StoreTarget(endpoint.url, endpoint.bucket, endpoint.region)
        else:
            issuer = prefixes = ExternalStore.from_file(config.store_file)
            target = issuer.target
            await issuer.check()
        tier = self._known_tiers[DEFAULT_TIER]
        provisioner = Provisioner(
            dsn,
            trash_seconds=config.trash_seconds,
            bytes_limit=tier.drive_bytes,
            inodes_limit=tier.drive_files or None,
        )
        # Who only stops boxes knows no limits: the operator's file may be what has to be mended.
        await provisioner.prepare(limits=serve)
        sealer = Sealer(keys / "master.key")
        self._issuer = issuer
        trash = timedelta(seconds=config.trash_seconds)
        volumes = Volumes(
            store, provisioner, issuer, sealer, target, prefixes=prefixes, trash=trash
        )
        await volumes.sweep()
        watchdog = DatabaseWatchdog(dsn)
        watchdog.start()
        self._stack.push_async_callback(watchdog.close)
        keeper = Keeper(volumes)
        keeper.start()
        self._stack.push_async_callback(keeper.close)
        return store, volumes

    async def _build_default_image(self, catalog: Catalog, backend: Backend) -> None:
        name = self._config.default_image
        try:
            built = catalog.is_built(name)
        except UnknownImage:
            if not backend.capabilities().any_image:
                raise
            return  # fetched with the first box of it
        if not built:
            await catalog.build(name, self._progress)

    async def _expect_images(self, catalog: Catalog, backend: Backend) -> None:
        """Goes on while boxes are served: one that is made meanwhile waits for its own image."""
        try:
            roots = {one.name: catalog.rootfs(one.name) for one in catalog.images() if one.built}
            await backend.expect(roots, self._config.default_image)
        except BoxdError as error:
            _log.warning("images are not made ready: %s", error)

    async def _on_request(self, box_id: str, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        """Agents ask when their box runs, and then there is a lifecycle."""
        if verb in protocol.ASKS:
            if self._operations is None:
                raise Unavailable("the service is starting; try again")
            return await self._operations.request_of_box(box_id, verb, params)
        return await self._lifecycle.request(box_id, verb, params)

    def _on_activity(self, box_id: str, shells: int) -> None:
        self._lifecycle.report(box_id, shells)

    def _on_misbehaviour(self, box_id: str, text: str) -> None:
        self._lifecycle.misbehaved(box_id, text)

    async def _mount_restarted(self, volume_id: str, path: Path) -> None:
        del path
        place = self._drives.workspace_of(volume_id)
        if place is not None:
            self._lifecycle.mount_restarted(*place)

    async def _close_lifecycle(self) -> None:
        await self._lifecycle.close(stop_boxes=self._mode is StopMode.EVERYTHING)

    async def _close_mounts(self, mounts: Mounts) -> None:
        await mounts.close(stop=self._mode is StopMode.EVERYTHING)

    async def _close_door(self) -> None:
        if self._door is not None:
            everything = self._mode is StopMode.EVERYTHING
            await self._door.close(QUICK_DRAIN if everything else DRAIN_S)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _backups(config: Config) -> Callable[[str], BackupJob] | None:
    """Makes the job of scheduled backups from a DSN; None: there are none.

    Raises BadRequest and Unavailable naming the flag or file that is wrong.
    """
    if config.backup_url is None:
        return None
    if config.backup_key_file is None:
        raise BadRequest("--backup-url needs --backup-key-file; `boxd backup --new-key` makes one")
    key = read_key(config.backup_key_file)
    target = open_target(config.backup_url, config.backup_store_file)
    return partial(
        BackupJob,
        config.state_dir,
        target=target,
        key=key,
        clock=SystemClock(),
        keep=config.backup_keep,
        every=config.backup_every,
    )


async def build_image(config: Config, name: str, progress: Callable[[str], None]) -> None:
    """`boxd images build`: UnknownImage, Conflict, Unavailable."""
    make_private(config.state_dir)
    catalog = _catalog(config)
    await catalog.build(name, progress)
    await asyncio.to_thread(catalog.prune, partial(_image_users, config))


async def import_image(
    config: Config, name: str, source: Path, progress: Callable[[str], None]
) -> Imported:
    """`boxd images import`: BadName, BadRequest, Conflict, Unavailable."""
    make_private(config.state_dir)
    catalog = _catalog(config)
    imported = await catalog.import_image(name, source, progress)
    await asyncio.to_thread(catalog.prune, partial(_image_users, config))
    return imported


def remove_image(config: Config, name: str) -> None:
    """`boxd images rm`: UnknownImage, Conflict naming the boxes that stand on it."""
    catalog = _catalog(config)
    users = partial(_image_users, config)
    catalog.remove(name, users)
    catalog.prune(users)


def known_images(config: Config) -> list[Image]:
    """The catalog."""
    return _catalog(config).images()


def _catalog(config: Config) -> Catalog:
    return Catalog(config.state_dir / "images", own=config.state_dir)


def _image_users(config: Config) -> dict[Path, list[str]]:
    """Versions of images on which boxes and snapshots of this host stand, and what these are."""
    users: dict[Path, list[str]] = {}
    names = HostNames(config.instance, config.state_dir.resolve())
    records = Records(names)
    origins = (one.plan for one in Origins(names).all() if not one.plan.template)
    kept = ((f"a snapshot of {plan.hostname}", plan) for plan in origins)
    boxes = ((f"{one.plan.hostname} ({one.plan.box_id[:12]})", one.plan) for one in records.all())
    for name, plan in itertools.chain(boxes, kept):
        if plan.rootfs is not None:
            users.setdefault(plan.rootfs.resolve(), []).append(name)
    return users


async def list_volumes(config: Config) -> list[Row]:
    """`boxd volumes ls`. Unavailable."""
    async with _stored_volumes(config) as (store, _):
        return listing(await store.list_volumes())


async def volume_credentials(config: Config, volume_id: str) -> str:
    """`boxd volumes credentials`: see `credentials_text`."""
    async with _stored_volumes(config) as (store, volumes):
        return await credentials_text(store, volumes, volume_id)


async def restore_volume(config: Config, volume_id: str, workspace: str | None) -> str:
    """`boxd volumes restore`: of which workspace it is the drive now. BadName, NotFound, Conflict.

    None: of the one whose drive it was.
    """
    async with _stored_volumes(config) as (store, volumes):
        return await restored(store, volumes, volume_id, workspace)


@asynccontextmanager
async def _stored_volumes(config: Config) -> AsyncIterator[tuple[PostgresStore, Volumes]]:
    """The volumes of a service that runs beside this process. Unavailable when none does."""
    dsn = config.meta_dsn
    key = config.state_dir / "keys" / "master.key"
    try:
        if dsn is None:
            dsn = EmbeddedPostgres(config.state_dir / "postgres").dsn()
        key.stat()
    except OSError:
        raise Unavailable(f"{config.state_dir} has no service yet: run `make up` first") from None
    issuer: EmbeddedObjectServer | ExternalStore
    if config.store_file is None:
        issuer = EmbeddedObjectServer(config.state_dir / "objects")
        target = StoreTarget(issuer.url, BUCKET, REGION)
    else:
        issuer = ExternalStore.from_file(config.store_file)
        target = issuer.target
    store = PostgresStore(dsn, deadline=BESIDE_S)
    try:
        await store.start()
        yield store, Volumes(store, Provisioner(dsn), issuer, Sealer(key), target)
    finally:
        await store.close()


async def _check_pairing(state: Path, store: PostgresStore, backend: Backend) -> None:
    """Refuses a control database of another installation: its rows decide which boxes live."""
    file = state / INSTANCE
    local = file.read_text(encoding="ascii") if file.exists() else None
    remote = await store.setting(INSTANCE)
    if remote is None and not await backend.list():
        local = local or random_hex(16)
        write_private(file, local.encode())
        await store.put_setting(INSTANCE, local)
    elif local != remote:
        raise Unavailable(
            f"the control database does not belong to the state directory {state}; "
            "give the --meta-dsn-file that was used with it, or another --state-dir"
        )


def _tunnel_key(keys: Path) -> Path:
    """The daemon's key in tunnels; boxes of earlier daemons know it."""
    path = keys / "tunnel_ed25519"
    if not path.exists():
        write_private(path, new_identity()[0])
    return path


def _fingerprint(public_key: str) -> str:
    blob = base64.b64decode(public_key.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _typed(config: Config) -> Address | None:
    """What users type to reach the front door, if the operator said so."""
    if config.ssh_host is None:
        return None
    return Address(config.ssh_host.host, config.ssh_host.port or config.ssh_addr.port)


def _reachable(host: str) -> str:
    """An address to type for a listener that may listen on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  compared, not bound


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
