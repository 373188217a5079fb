"""The composition root: it creates all parts of the service, and starts and stops them in order.

No other module knows which class implements an interface. Each part pushes its `close` on one
stack. A start that fails or is cancelled therefore undoes its earlier steps, and `stop` closes the
parts in reverse order.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from boxd.boxes.lifecycle.assembly import Assembly, Places
from boxd.boxes.lifecycle.lifecycle import Lifecycle, LifecycleOptions
from boxd.boxes.limits.access_policy import AccessPolicy
from boxd.boxes.limits.admission import Limits
from boxd.boxes.limits.host import host_limits
from boxd.boxes.limits.source_addresses import SourceAddresses
from boxd.boxes.limits.tier_limits import DEFAULT_TIER
from boxd.boxes.limits.tiers import Tiers
from boxd.boxes.timing.policy import Policy
from boxd.clock import SystemClock
from boxd.config import Address
from boxd.embedded.files import write_private
from boxd.errors import Unavailable
from boxd.http.app import Api
from boxd.http.server.serve import ApiServer
from boxd.http.server.serve import bind as bind_http
from boxd.mcp.service import McpService
from boxd.names.preview import example_url, preview_authority
from boxd.operations import Dependencies, Operations
from boxd.privileged.interface import INSTANCE
from boxd.secret import random_hex
from boxd.ssh.cli.registry import build_console
from boxd.ssh.connection.listener import DRAIN_S, SshListener
from boxd.ssh.connection.listener import bind as bind_ssh
from boxd.ssh.connection.listener_state import ListenerSettings
from boxd.store.postgres.store import PostgresStore
from boxd.tasks import BackgroundTasks
from boxd.telemetry.listener import bind as bind_metrics
from boxd.telemetry.telemetry import Telemetry
from boxd.tunnel.registry import TunnelRegistry, new_identity
from boxd.workspaces.box_drives import BoxDrives
from boxd.workspaces.credentials import ExternalStore, ObjectStorage
from boxd.workspaces.host_drives import HostDrives
from boxd.workspaces.idle_upkeep import IdleUpkeep
from boxd.workspaces.pool import DrivePool
from boxd.workspaces.provision import Provisioner
from boxd.workspaces.seal import Sealer
from boxd.workspaces.volumes import Volumes
from boxd.workspaces.watchdog import DatabaseWatchdog
from boxd.workspaces.workspace_drives import WorkspaceDrives

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from boxd.backends.interface import Backend
    from boxd.boxes.limits.host import HostLimits
    from boxd.config import Config
    from boxd.operator_files import OperatorFiles
    from boxd.privileged.interface import Host, Servers
    from boxd.tunnel.presence import Presence
    from boxd.workspaces.credentials import CredentialIssuer

QUICK_DRAIN = 1.0
"""Seconds that open channels get to drain when their boxes are about to stop."""

_log = logging.getLogger(__name__)


class StopMode(Enum):
    """What `stop` stops."""

    EVERYTHING = "everything"
    """The daemon, boxes and mounts. The boxes later start again from their disks."""
    DAEMON = "daemon"
    """Only the daemon. The next daemon adopts the boxes and mounts."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound sockets of the listeners. None: the service binds its own."""

    ssh: socket.socket | None = None
    http: socket.socket | None = None
    metrics: socket.socket | None = None

    @classmethod
    def of(cls, config: Config) -> Bound:
        """Bind the sockets. Raises Unavailable with the address and the reason."""
        http = None if config.api_addr is None else bind_http(config.api_addr)
        address = config.telemetry.metrics_addr
        metrics = None if address is None else bind_metrics(address)
        return cls(bind_ssh(config.ssh_addr), http, metrics)

    def close(self) -> None:
        """Close the sockets in this process."""
        for bound in (self.ssh, self.http, self.metrics):
            if bound is not None:
                bound.close()


UNBOUND = Bound()


class Service:
    """One installation. Call `start` once and `stop` once.

    The caller holds the lock of the state directory. `host` is the part that needs root. `files`
    are the operator's files. `progress` receives a line for each step that may take long.
    """

    def __init__(
        self,
        config: Config,
        files: OperatorFiles,
        host: Host,
        progress: Callable[[str], None],
        bound: Bound = UNBOUND,
    ) -> None:
        self._config = config
        self._bound = bound
        self._files = files
        self._host = host
        host.on_mount_restarted(self._mount_restarted)
        self._progress = progress
        self._stack = AsyncExitStack()
        self._tasks = BackgroundTasks()
        self._telemetry = Telemetry(config.telemetry, bound.metrics)
        self._mode = StopMode.DAEMON
        self._door: SshListener | None = None
        self._operations: Operations | None = None
        self._issuer: CredentialIssuer
        self._drives: HostDrives | BoxDrives | None = None
        self.ssh_addr: Address | None = None
        self.api_addr: Address | None = None
        self.metrics_addr: Address | None = None

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
        reload = self._files.administrators.reload(self._host.admin_keys)
        self._tasks.start(reload, name="administrators' keys")

    def addresses(self) -> dict[str, str]:
        """Return the addresses of the listeners by name, for the log."""
        listeners = {"ssh": self.ssh_addr, "api": self.api_addr, "metrics": self.metrics_addr}
        return {name: str(address) for name, address in listeners.items() if address is not None}

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
        if self.metrics_addr is not None:
            lines.append(f"  metrics        http://{self.metrics_addr}/metrics")
        return [*lines, "Ctrl-C stops everything; the next start restores boxes, keys and files."]

    async def _start(self, *, serve: bool) -> None:
        config, state = self._config, self._config.state_dir
        host = self._host
        self._stack.push_async_callback(self._stop_host)
        self._stack.push_async_callback(self._tasks.close)
        if serve:
            self._stack.push_async_callback(self._telemetry.close)
            self.metrics_addr = await self._telemetry.start()
        servers = await host.start_servers()
        keys = state / "keys"
        keys.mkdir(mode=0o700, exist_ok=True)
        store, volumes = await self._start_stores(servers, keys, serve=serve)
        await host.start_boxes({box.backend for box in await store.all_boxes()})
        await _check_pairing(state, store, host)
        self._telemetry.watch_mounts(host.mounts)
        tunnels = TunnelRegistry(
            _tunnel_key(keys),
            host.directories.bind,
            self._on_request,
            self._on_activity,
            self._on_misbehaviour,
        )
        if config.drive:
            drives: HostDrives | BoxDrives = (
                HostDrives(volumes, host.mounts, host.backend)
                if host.backend.capabilities().attaches_drives
                else await self._box_drives(volumes, tunnels, keys)
            )
            self._stack.push_async_callback(drives.close)
            self._drives = drives
        operations = await self._start_core(store, volumes, tunnels, serve=serve)
        if serve:
            await self._open_doors(operations, keys)

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
        volumes: Volumes,
        tunnels: TunnelRegistry,
        *,
        serve: bool,
    ) -> Operations:
        """Start the lifecycle of boxes; return the operations on top of it."""
        tiers, gate = await self._decisions(store, clock := SystemClock())
        host, catalog = self._host, self._files.catalog
        assembly = Assembly(
            backend=host.backend,
            tunnels=tunnels,
            drives=self._drives,
            catalog=catalog,
            places=Places(host.directories, host.runtime, tunnels.public_key),
            new_identity=new_identity,
        )
        self._lifecycle = lifecycle = Lifecycle(
            store=store,
            assembly=assembly,
            catalog=catalog,
            clock=clock,
            limits=Limits(
                tier_of=tiers.of,
                host=self._host_limits(host.backend),
                source_addresses=SourceAddresses(self._config.trusted_sources),
            ),
            options=self._lifecycle_options(),
            observer=self._telemetry.observer,
        )
        self._telemetry.sources.boxes = lifecycle.figures.read
        self._stack.push_async_callback(self._close_lifecycle)
        self._progress("Recovering existing boxes")
        await lifecycle.start(stopping=not serve)
        observer = self._telemetry.observer
        pool = DrivePool(volumes, clock, journals=host.journals, observer=observer)
        self._telemetry.sources.api_drives = lambda: pool.numbers
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
                observer=observer,
            )
        )
        self._operations = operations
        self._stack.push_async_callback(operations.close)
        return operations

    async def _decisions(
        self, store: PostgresStore, clock: SystemClock
    ) -> tuple[Tiers, AccessPolicy]:
        """Return the operator's decisions about individual owners."""
        tiers = Tiers(store, self._files.tiers)
        gate = AccessPolicy(store, clock, self._files.administrators)
        await tiers.start()
        await gate.start()
        return tiers, gate

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
            prepared=self._config.prepared_boxes,
            previews=self._config.preview_domain is not None,
            global_names=self._config.names == "global",
        )

    def _host_limits(self, backend: Backend) -> HostLimits:
        return host_limits(
            self._config.state_dir / "keys",  # on the disk of the state directory, and visible here
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
                administrators=self._files.administrators,
                preview_authority=preview_authority(
                    self._config.preview_domain, self._config.api_addr
                ),
                bound=self._bound.ssh,
            ),
        )
        await self._door.start()
        self._telemetry.sources.ssh = self._door.numbers
        self._stack.push_async_callback(self._close_door)
        self.ssh_addr = Address(self._config.ssh_addr.host, self._door.port)
        if self._config.api_addr is not None:
            api = Api(operations, self._config, mcp, sanitise=self._host.sanitise)
            server = ApiServer(api, self._config, self._bound.http)
            self.api_addr = await server.start()
            self._telemetry.sources.http = server.connections
            self._stack.push_async_callback(server.close)

    async def _start_stores(
        self, servers: Servers, keys: Path, *, serve: bool
    ) -> tuple[PostgresStore, Volumes]:
        """Start the control database and the volumes."""
        config, dsn = self._config, servers.dsn
        store = PostgresStore(dsn, observer=self._telemetry.observer)
        self._telemetry.sources.pool = lambda: store.use
        self._stack.push_async_callback(store.close)
        await store.start()
        external = self._files.store
        if external is not None:
            self._issuer = external
            storage = ObjectStorage(external.target, external, prefixes=external)
            await external.check()
        elif servers.objects is not None:
            self._issuer = self._host.issuer
            storage = ObjectStorage(servers.objects, self._issuer)
        else:
            raise RuntimeError("the embedded object server did not start")
        tier = self._files.tiers[DEFAULT_TIER]
        provisioner = Provisioner(
            dsn,
            trash_seconds=config.trash_seconds,
            bytes_limit=tier.drive_bytes,
            inodes_limit=tier.drive_files or None,
        )
        # Stopping boxes ignores limits, because the operator's file may have an error.
        await provisioner.prepare(limits=serve)
        sealer = Sealer(keys / "master.key")
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

    async def _on_request(self, box_id: str, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer an agent. Agents send requests only after the lifecycle has started their box."""
        if verb in (*protocol.ASKS, *protocol.TRASH):
            if self._operations is None:
                raise Unavailable("the service is starting; try again")
            operations = self._operations
            family = operations.asks if verb in protocol.ASKS else operations.trash
            return await family.request_of_box(box_id, verb, params)
        return await self._lifecycle.request(box_id, verb, params)

    def _on_activity(self, box_id: str, presence: Presence) -> None:
        self._lifecycle.report(box_id, presence)

    def _on_misbehaviour(self, box_id: str, text: str) -> None:
        self._lifecycle.misbehaved(box_id, text)

    def _mount_restarted(self, volume_id: str) -> None:
        place = None if self._drives is None else self._drives.workspace_of(volume_id)
        if place is not None:
            self._lifecycle.mount_restarted(*place)

    async def _close_lifecycle(self) -> None:
        await self._lifecycle.close(stop_boxes=self._mode is StopMode.EVERYTHING)

    async def _stop_host(self) -> None:
        await self._host.stop(everything=self._mode is StopMode.EVERYTHING)

    async def _close_door(self) -> None:
        if self._door is not None:
            everything = self._mode is StopMode.EVERYTHING
            await self._door.close(QUICK_DRAIN if everything else DRAIN_S)


async def _check_pairing(state: Path, store: PostgresStore, host: Host) -> None:
    """Raise Unavailable for the control database of another installation.

    The service removes boxes that have no row in the database.
    """
    local, remote = await host.identity(), await store.setting(INSTANCE)
    if remote is None and not await host.backend.list():
        value = local or random_hex(16)
        await host.set_identity(value)
        await store.put_setting(INSTANCE, value)
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
