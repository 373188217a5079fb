"""The composition root: it creates all parts of the service, and starts and stops them in order.

No other module knows which class implements an interface. Each part pushes its `close` on one
stack. A start that fails or is cancelled therefore undoes its earlier steps, and `stop` closes the
parts in reverse order.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from boxd.backends.choose import choose
from boxd.backup.creation import BackupJob
from boxd.backup.keyfile import read_key
from boxd.backup.schedule import BackupSchedule
from boxd.backup.target_url import open_target
from boxd.boxes.lifecycle.assembly import Assembly, Places
from boxd.boxes.lifecycle.lifecycle import Lifecycle, LifecycleOptions
from boxd.boxes.limits.access_policy import AccessPolicy
from boxd.boxes.limits.admission import Limits
from boxd.boxes.limits.host import check_floor, host_limits
from boxd.boxes.limits.source_addresses import SourceAddresses
from boxd.boxes.limits.tier_limits import DEFAULT_TIER, TIERS_FILE, load_tiers
from boxd.boxes.limits.tiers import Tiers
from boxd.boxes.timing.policy import Policy
from boxd.clock import SystemClock
from boxd.config import Address
from boxd.embedded.files import write_private
from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.statedir import hold_lock, make_private
from boxd.errors import BadRequest, BoxdError, Unavailable, UnknownImage
from boxd.http.app import Api
from boxd.http.server.serve import ApiServer
from boxd.images import runtime
from boxd.maintenance import catalog_of
from boxd.mcp.service import McpService
from boxd.names.preview import example_url
from boxd.operations import Dependencies, Operations
from boxd.secret import random_hex
from boxd.ssh.cli.registry import build_console
from boxd.ssh.connection.admin_keys import AdminKeys
from boxd.ssh.connection.listener import DRAIN_S, SshListener
from boxd.ssh.connection.listener_state import ListenerSettings
from boxd.store.postgres.store import PostgresStore
from boxd.tasks import BackgroundTasks
from boxd.tunnel.registry import TunnelRegistry, new_identity
from boxd.workspaces.box_drives import BoxDrives
from boxd.workspaces.credentials import ExternalStore, ObjectStorage, StoreTarget
from boxd.workspaces.host_drives import HostDrives
from boxd.workspaces.idle_upkeep import IdleUpkeep
from boxd.workspaces.journals import JOURNALS
from boxd.workspaces.mounts import Mounts
from boxd.workspaces.pool import DrivePool
from boxd.workspaces.provision import Provisioner
from boxd.workspaces.seal import Sealer
from boxd.workspaces.volumes import Volumes
from boxd.workspaces.watchdog import DatabaseWatchdog
from boxd.workspaces.workspace_drives import WorkspaceDrives

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from boxd.backends.interface import Backend
    from boxd.boxes.limits.host import HostLimits
    from boxd.config import Config
    from boxd.images.catalog import Catalog

INSTANCE = "instance"
"""A setting in the control database and a file in the state directory, with the same value.

A database and a state directory belong together if the values are equal.
"""
QUICK_DRAIN = 1.0
"""Seconds that open channels get to drain when their boxes are about to stop."""

_log = logging.getLogger(__name__)


class StopMode(Enum):
    """What `stop` stops."""

    EVERYTHING = "everything"
    """The daemon, boxes and mounts. The boxes later start again from their disks."""
    DAEMON = "daemon"
    """Only the daemon. The next daemon adopts the boxes and mounts."""


class Service:
    """One installation. Call `start` once and `stop` once.

    `progress` receives a line for each step that may take long.
    """

    def __init__(self, config: Config, progress: Callable[[str], None]) -> None:
        self._config = config
        self._progress = progress
        self._stack = AsyncExitStack()
        self._tasks = BackgroundTasks()
        self._mode = StopMode.DAEMON
        self._known_tiers = load_tiers()
        self._administrators = AdminKeys(config.admin_keys)
        self._door: SshListener | None = None
        self._operations: Operations | None = None
        self._drives: HostDrives | BoxDrives | None = None
        self.ssh_addr: Address | None = None
        self.api_addr: Address | None = None

    async def start(self, *, serve: bool = True) -> None:
        """Start all parts. `serve` false: start only the parts that stop boxes (`boxd down`).

        Raises Unavailable with a remedy, after it has stopped the parts that had started.
        """
        try:
            await self._start(serve=serve)
        except BaseException:
            await self._stack.aclose()
            raise

    async def stop(self, mode: StopMode) -> None:
        """Stop all parts in reverse order. Idempotent."""
        self._mode = mode
        await self._stack.aclose()

    def reread(self) -> None:
        """Reload files that may change while the service runs (admin keys)."""
        self._administrators.reload()

    def welcome(self) -> list[str]:
        """Return the lines that tell the operator how to use the service."""
        if self._door is None or self.ssh_addr is None:
            raise RuntimeError("not serving")
        host, port = _reachable(self.ssh_addr.host), self.ssh_addr.port
        if (public := self._config.ssh_host) is not None:
            host, port = public.host, public.port or port
        lines = [
            "",
            f"boxd is serving; its state is in {self._config.state_dir}",
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
        return [*lines, "Ctrl-C stops everything; the next start restores boxes, keys and files."]

    async def _start(self, *, serve: bool) -> None:
        config, state = self._config, self._config.state_dir
        backups = _backups(config) if serve else None
        if serve:  # stopping boxes needs no limits
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
        # Stopping boxes needs no disk space for new ones.
        backend = choose(config if serve else replace(config, boxes_size=0), existing, serve=serve)
        self._progress("Preparing the host for boxes")
        # Pushed before the setup, because a failed or cancelled setup has changed part of the host.
        self._stack.push_async_callback(backend.close)
        await backend.setup()
        await _check_pairing(state, store, backend)
        catalog = catalog_of(config)
        mounts = Mounts(
            state / "mounts",
            on_restart=self._mount_restarted,
            cache=config.cache_dir or state / "cache",
            cache_size=config.cache_size,
            journals=state / JOURNALS,
        )
        self._stack.push_async_callback(self._close_mounts, mounts)
        await mounts.adopt()
        tunnels = TunnelRegistry(
            _tunnel_key(keys), self._on_request, self._on_activity, self._on_misbehaviour
        )
        inside = not backend.capabilities().attaches_drives
        if config.drive:
            drives: HostDrives | BoxDrives = (
                await self._box_drives(volumes, tunnels, keys)
                if inside
                else HostDrives(volumes, mounts, backend)
            )
            self._stack.push_async_callback(drives.close)
            self._drives = drives
        guest = state / "runtime"
        if serve:
            build = partial(runtime.build, guest, self._progress, drive=inside)
            guest = await asyncio.to_thread(build)
            await self._build_default_image(catalog, backend)
            self._stack.push_async_callback(self._tasks.close)
            self._tasks.start(self._expect_images(catalog, backend), name="look ahead at images")
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
        """Start the drives of a backend whose boxes mount their drives themselves."""
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
        """Start the lifecycle of boxes; return the operations on top of it."""
        tiers, gate = await self._decisions(store, clock := SystemClock())
        assembly = Assembly(
            backend=backend,
            tunnels=tunnels,
            drives=self._drives,
            catalog=catalog,
            places=Places(self._config.state_dir / "boxes", guest, tunnels.public_key),
            new_identity=new_identity,
        )
        self._lifecycle = lifecycle = Lifecycle(
            store=store,
            assembly=assembly,
            catalog=catalog,
            clock=clock,
            limits=Limits(
                tier_of=tiers.of,
                host=self._host_limits(backend),
                source_addresses=SourceAddresses(self._config.trusted_sources),
            ),
            options=self._lifecycle_options(),
        )
        self._lifecycle = lifecycle
        self._stack.push_async_callback(self._close_lifecycle)
        self._progress("Recovering existing boxes")
        await lifecycle.start(stopping=not serve)
        pool = DrivePool(volumes, clock, journals=self._config.state_dir / JOURNALS)
        self._stack.push_async_callback(pool.close)
        operations = Operations.compose(
            Dependencies(
                store=store,
                lifecycle=lifecycle,
                catalog=catalog,
                drives=None
                if self._drives is None
                else WorkspaceDrives(volumes, pool, self._drives),
                tier_of=tiers.of,
                tiers=tiers,
                access_policy=gate,
                clock=clock,
                sealer=Sealer(self._config.state_dir / "keys" / "master.key"),
                ssh_host=_public_ssh_address(self._config),
            )
        )
        self._operations = operations
        self._stack.push_async_callback(operations.close)
        return operations

    async def _decisions(
        self, store: PostgresStore, clock: SystemClock
    ) -> tuple[Tiers, AccessPolicy]:
        """Return the operator's decisions about individual owners."""
        tiers = Tiers(store, self._known_tiers)
        gate = AccessPolicy(store, clock, self._administrators)
        await tiers.start()
        await gate.start()
        return tiers, gate

    def _policy(self) -> Policy:
        config = self._config
        return Policy(
            idle_timeout=config.idle_timeout, idle_reap=config.idle_reap, grace=config.grace
        )

    def _lifecycle_options(self) -> LifecycleOptions:
        return LifecycleOptions(
            default_image=self._config.default_image,
            automount=self._config.workspace_automount,
            policy=Policy(
                idle_timeout=self._config.idle_timeout,
                idle_reap=self._config.idle_reap,
                grace=self._config.grace,
            ),
            templates=self._config.templates,
            previews=self._config.preview_domain is not None,
            global_names=self._config.names == "global",
        )

    def _host_limits(self, backend: Backend) -> HostLimits:
        return host_limits(
            self._config.state_dir,
            running=self._config.max_running,
            memory=self._config.max_memory,
            free=self._config.min_free,
            ceiling=backend.capabilities().memory_ceiling,
        )

    async def _open_doors(self, operations: Operations, keys: Path) -> None:
        mcp = McpService(operations)
        self._stack.push_async_callback(mcp.close)
        self._door = SshListener(
            operations,
            ListenerSettings(
                self._config.ssh_addr,
                keys,
                trusted=self._config.trusted_sources,
                console=build_console(mcp.serve_lines),
                public_address=self._config.ssh_host,
                administrators=self._administrators,
                preview_domain=self._config.preview_domain if self._config.api_addr else None,
            ),
        )
        await self._door.start()
        self._stack.push_async_callback(self._close_door)
        self.ssh_addr = Address(self._config.ssh_addr.host, self._door.port)
        if self._config.api_addr is not None:
            server = ApiServer(Api(operations, self._config, mcp), self._config)
            self.api_addr = await server.start()
            self._stack.push_async_callback(server.close)

    async def _start_stores(self, keys: Path, *, serve: bool) -> tuple[PostgresStore, Volumes]:
        """Start the control database and the volumes, on embedded or external servers."""
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
        if config.store_file is None:
            self._progress("Starting the object server")
            issuer = EmbeddedObjectServer(config.state_dir / "objects", on_crash=_log.error)
            endpoint = await issuer.start()
            self._stack.push_async_callback(issuer.stop)
            target = StoreTarget(endpoint.url, endpoint.bucket, endpoint.region)
            storage = ObjectStorage(target, issuer)
        else:
            issuer = ExternalStore.from_file(config.store_file)
            storage = ObjectStorage(issuer.target, issuer, prefixes=issuer)
            await issuer.check()
        tier = self._known_tiers[DEFAULT_TIER]
        provisioner = Provisioner(
            dsn,
            trash_seconds=config.trash_seconds,
            bytes_limit=tier.drive_bytes,
            inodes_limit=tier.drive_files or None,
        )
        # Stopping boxes ignores limits, because the operator's file may have an error.
        await provisioner.prepare(limits=serve)
        sealer = Sealer(keys / "master.key")
        self._issuer = issuer
        trash = timedelta(seconds=config.trash_seconds)
        volumes = Volumes(store, provisioner, storage, sealer, trash=trash)
        await volumes.sweep()
        watchdog = DatabaseWatchdog(dsn)
        watchdog.start()
        self._stack.push_async_callback(watchdog.close)
        upkeep = IdleUpkeep(volumes)
        upkeep.start()
        self._stack.push_async_callback(upkeep.close)
        return store, volumes

    async def _build_default_image(self, catalog: Catalog, backend: Backend) -> None:
        name = self._config.default_image
        try:
            built = catalog.is_built(name)
        except UnknownImage:
            if not backend.capabilities().any_image:
                raise
            return  # the backend pulls the image with its first box
        if not built:
            await catalog.build(name, self._progress)

    async def _expect_images(self, catalog: Catalog, backend: Backend) -> None:
        """Prepare images while the service runs. A new box waits only for its own image."""
        try:
            roots = {one.name: catalog.rootfs(one.name) for one in catalog.images() if one.built}
            await backend.expect(roots, self._config.default_image)
        except BoxdError as error:
            _log.warning("cannot prepare images: %s", error)

    async def _on_request(self, box_id: str, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer an agent. Agents send requests only after the lifecycle has started their box."""
        if verb in (*protocol.ASKS, *protocol.TRASH):
            if self._operations is None:
                raise Unavailable("the service is starting; try again")
            operations = self._operations
            family = operations.asks if verb in protocol.ASKS else operations.trash
            return await family.request_of_box(box_id, verb, params)
        return await self._lifecycle.request(box_id, verb, params)

    def _on_activity(self, box_id: str, shells: int) -> None:
        self._lifecycle.report(box_id, shells)

    def _on_misbehaviour(self, box_id: str, text: str) -> None:
        self._lifecycle.misbehaved(box_id, text)

    async def _mount_restarted(self, volume_id: str, path: Path) -> None:
        del path
        place = None if self._drives is None else self._drives.workspace_of(volume_id)
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


def _backups(config: Config) -> Callable[[str], BackupJob] | None:
    """Return a function from a DSN to the job of scheduled backups, or None without --backup-url.

    Raises BadRequest or Unavailable with the name of the wrong flag or file.
    """
    if config.backup_url is None:
        return None
    if config.backup_key_file is None:
        raise BadRequest(
            "--backup-url needs --backup-key-file; `boxd backup --new-key FILE` creates one"
        )
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


async def _check_pairing(state: Path, store: PostgresStore, backend: Backend) -> None:
    """Raise Unavailable for the control database of another installation.

    The service removes boxes that have no row in the database.
    """
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
            "give the --meta-dsn-file of that directory, or another --state-dir"
        )


def _tunnel_key(keys: Path) -> Path:
    """Return the path of the daemon's tunnel key, creating it if needed. Existing boxes know it."""
    path = keys / "tunnel_ed25519"
    if not path.exists():
        write_private(path, new_identity()[0])
    return path


def _fingerprint(public_key: str) -> str:
    """Return the fingerprint of a public key line, as `ssh-keygen -l` prints it."""
    blob = base64.b64decode(public_key.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _public_ssh_address(config: Config) -> Address | None:
    """Return the SSH address that users type, or None if --ssh-host is not given."""
    if config.ssh_host is None:
        return None
    return Address(config.ssh_host.host, config.ssh_host.port or config.ssh_addr.port)


def _reachable(host: str) -> str:
    """Return a host that users can type: loopback for a listener on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  compared, not bound


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
