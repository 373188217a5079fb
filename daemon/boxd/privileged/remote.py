"""Implements `Host` in the process that strangers reach: each method is a call.

This process sees no file of boxes and mounts. Their paths are only names here.
"""

from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.interface import BackendBox, BoxStats, InitState
from boxd.backends.run_directories import RunDirectories
from boxd.errors import Unavailable
from boxd.privileged import calls
from boxd.secret import Secret
from boxd.workspaces.journals import MOUNTS
from boxd.workspaces.mount_process import MountPlace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping

    from boxd.backends.interface import BoxPlan, Capabilities
    from boxd.privileged.client import Client
    from boxd.privileged.interface import Servers
    from wrkfs.config import VolumeConfig


class RemoteHost:
    """A `Host` whose methods need no rights."""

    def __init__(self, client: Client, servers: Servers, state: Path) -> None:
        """`servers` run already. `state` is the state directory."""
        self._client = client
        self._servers = servers
        self.directories = RemoteDirectories(client, state / "boxes")
        self.journals = RemoteJournals(client)
        self.issuer = RemoteIssuer(client)
        self.mounts = RemoteMounts(client, state / MOUNTS)
        self.backend: RemoteBackend
        self.runtime: Path

    def on_mount_restarted(self, callback: Callable[[str], None]) -> None:
        """Implements `Host`."""
        self._client.on_restarted = callback

    async def start_servers(self) -> Servers:
        """Implements `Host`: the servers started before this process."""
        return self._servers

    async def start_boxes(self, existing: Collection[str]) -> None:
        """Implements `Host`."""
        call = calls.StartBoxes(sorted(existing))
        started = await self._client.ask(call, calls.Started)
        self.backend = RemoteBackend(self._client, started.backend, started.capabilities)
        self.runtime = Path(started.runtime)

    async def identity(self) -> str:
        """Implements `Host`."""
        return await self._client.ask(calls.Identity(), str)

    async def set_identity(self, value: str) -> None:
        """Implements `Host`."""
        await self._client.do(calls.SetIdentity(value))

    async def admin_keys(self) -> bytes:
        """Implements `Host`."""
        return await self._client.ask(calls.AdminKeys(), bytes)

    async def sanitise(self, document: int, output: int) -> int:
        """Implements `Host`."""
        return await self._client.ask(calls.Sanitise(), int, (document, output))

    async def stop(self, *, everything: bool) -> None:
        """Implements `Host`."""
        await self._client.do(calls.Stop(everything))


class RemoteBackend:
    """A `Backend` in the other process, which has been set up."""

    def __init__(self, client: Client, name: str, capabilities: Capabilities) -> None:
        self._client = client
        self._capabilities = capabilities
        self.name = name

    async def setup(self) -> None:
        """Implements `Backend`: the other process has done it."""

    async def close(self) -> None:
        """Implements `Backend`: the other process does it."""

    def capabilities(self) -> Capabilities:
        """Implements `Backend`."""
        return self._capabilities

    async def expect(self, roots: Mapping[str, Path], first: str) -> None:
        """Implements `Backend`: the other process knows the images."""
        del roots, first

    async def require_kind(self, runtime: str, *, containers: bool) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.RequireKind(runtime, containers))

    async def create(self, plan: BoxPlan) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.Create(_plan(plan)))

    async def clone(self, plan: BoxPlan, snapshot_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.Clone(_plan(plan), snapshot_id))

    async def start(self, box_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.Start(box_id))

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.AttachDrive(box_id, _volume(source)))

    async def detach_drive(self, box_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.DetachDrive(box_id))

    async def stop(self, box_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.StopBox(box_id))

    async def init_state(self, box_id: str) -> InitState:
        """Implements `Backend`."""
        return await self._client.ask(calls.StateOfInit(box_id), InitState)

    async def suspect_inits(self, box_ids: Collection[str]) -> set[str]:
        """Implements `Backend`."""
        suspects: set[str] = set()
        ids = iter(box_ids)
        while part := list(islice(ids, calls.IDS_MAX)):
            suspects.update(await self._client.ask(calls.SuspectInits(part), list[str]))
        return suspects

    async def destroy(self, box_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.Destroy(box_id))

    async def list(self) -> list[BackendBox]:
        """Implements `Backend`."""
        return await self._client.ask(calls.ListBoxes(), list[BackendBox])

    async def stats(self, box_id: str) -> BoxStats:
        """Implements `Backend`."""
        return await self._client.ask(calls.Stats(box_id), BoxStats)

    async def oom_kills(self, box_id: str) -> int:
        """Implements `Backend`."""
        return await self._client.ask(calls.OomKills(box_id), int)

    async def tcp_socket(self, box_id: str, family: int) -> socket.socket | None:
        """Implements `Backend`."""
        call = calls.TcpSocket(box_id, 2 if family == socket.AF_INET else 10)
        received = await self._client.fetch(call)
        return next(_sockets(received), None)

    async def freeze(self, box_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.Freeze(box_id))

    async def save_memory(self, box_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.SaveMemory(box_id))

    async def thaw(self, box_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.Thaw(box_id))

    async def resume(self, box_id: str, drive: Path | None) -> None:
        """Implements `Backend`."""
        volume = None if drive is None else _volume(drive)
        await self._client.do(calls.Resume(box_id, volume))

    async def rename(self, box_id: str, hostname: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.Rename(box_id, hostname))

    async def discard_memory(self, box_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.DiscardMemory(box_id))

    async def snapshot(
        self, box_id: str, snapshot_id: str, *, lasting: bool = True, memory: bool = True
    ) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.Snapshot(box_id, snapshot_id, lasting, memory))

    async def snapshot_bytes(self, snapshot_id: str) -> int:
        """Implements `Backend`."""
        return await self._client.ask(calls.SnapshotBytes(snapshot_id), int)

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.DropSnapshot(snapshot_id))

    async def snapshots(self) -> tuple[str, ...]:
        """Implements `Backend`."""
        return tuple(await self._client.ask(calls.Snapshots(), list[str]))

    async def restore_snapshot(self, box_id: str, snapshot_id: str) -> None:
        """Implements `Backend`."""
        await self._client.do(calls.RestoreSnapshot(box_id, snapshot_id))


class RemoteMounts:
    """`Mounts` of the other process."""

    def __init__(self, client: Client, directory: Path) -> None:
        self._client = client
        self._directory = directory

    async def ensure(self, config: VolumeConfig) -> Path:
        """Implements `Mounts`."""
        store = config.store
        call = calls.EnsureMount(
            config.volume,
            config.schema,
            config.meta_dsn,
            store.endpoint,
            store.bucket,
            store.prefix,
            store.region,
            store.access_key,
            store.secret_key,
        )
        await self._client.do(call)
        return MountPlace(self._directory / config.volume).mountpoint

    async def release(self, volume_id: str) -> None:
        """Implements `Mounts`."""
        await self._client.do(calls.ReleaseMount(volume_id))

    async def present(self) -> list[str]:
        """Implements `Mounts`."""
        return await self._client.ask(calls.PresentMounts(), list[str])

    async def health(self, volume_id: str) -> dict[str, object]:
        """Implements `Mounts`."""
        return await self._client.ask(calls.MountHealth(volume_id), dict[str, object])


class RemoteDirectories:
    """`BoxDirectories` of the other process."""

    def __init__(self, client: Client, boxes: Path) -> None:
        self._client = client
        self._names = RunDirectories(boxes)

    def path(self, box_id: str) -> Path:
        """Implements `RunDirectories`."""
        return self._names.path(box_id)

    async def write(self, box_id: str, config: str, private_key: bytes) -> None:
        """Implements `RunDirectories`."""
        await self._client.do(calls.WriteDirectory(box_id, config, private_key))

    async def exists(self, box_id: str) -> bool:
        """Implements `RunDirectories`."""
        return await self._client.ask(calls.DirectoryExists(box_id), bool)

    async def box_ids(self) -> set[str]:
        """Implements `RunDirectories`."""
        return set(await self._client.ask(calls.DirectoryIds(), list[str]))

    async def remove(self, box_id: str) -> None:
        """Implements `RunDirectories`."""
        await self._client.do(calls.RemoveDirectory(box_id))

    async def bind(self, box_id: str) -> socket.socket:
        """Implements `BoxDirectories`."""
        return next(_sockets(await self._client.fetch(calls.Bind(box_id))))


class RemoteJournals:
    """`Journals` of the other process."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @asynccontextmanager
    async def open(self, config: VolumeConfig) -> AsyncIterator[Path]:
        """Implements `Journals`. Raises OSError."""
        call = calls.OpenJournals(config.volume, config.schema)
        try:
            (directory,) = await self._client.fetch(call)
        except Unavailable as error:
            raise OSError(str(error)) from error
        try:
            yield Path(f"/proc/self/fd/{directory}")
        finally:
            os.close(directory)


class RemoteIssuer:
    """A `CredentialIssuer` in the other process."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def issue(self, prefix: str) -> tuple[str, Secret]:
        """Implements `CredentialIssuer`."""
        access_key, secret = await self._client.ask(calls.Issue(prefix), tuple[str, str])
        return access_key, Secret(secret)

    async def revoke(self, access_key: str) -> None:
        """Implements `CredentialIssuer`."""
        await self._client.do(calls.Revoke(access_key))

    async def credentials(self) -> list[tuple[str, str]]:
        """Implements `CredentialIssuer`."""
        return await self._client.ask(calls.Credentials(), list[tuple[str, str]])


def _plan(plan: BoxPlan) -> calls.Plan:
    return calls.Plan(
        box_id=plan.box_id,
        hostname=plan.hostname,
        image=plan.image,
        in_catalog=plan.rootfs is not None,
        cpus=plan.cpus,
        mem_mb=plan.mem_mb,
        pids=plan.pids,
        egress=plan.egress,
        disk_mb=plan.disk_mb,
        template=plan.template,
        oci_runtime=plan.oci_runtime,
        containers=plan.containers,
    )


def _volume(mount_point: Path) -> str:
    """Return the volume of a path that `RemoteMounts.ensure` returned."""
    return mount_point.parent.name


def _sockets(descriptors: list[int]) -> Iterator[socket.socket]:
    for descriptor in descriptors:
        sock = socket.socket(fileno=descriptor)
        sock.setblocking(False)
        yield sock
