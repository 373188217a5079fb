"""What each call does in the part that needs root.

A call comes from a process that strangers may have taken over. Its decoding has checked the form of
every value. A handler resolves ids and names to paths of this host itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from boxd.backends.interface import BoxPlan
from boxd.errors import BadRequest, Unavailable, Unsupported
from boxd.privileged import calls
from boxd.sandbox.users import FRONT
from boxd.workspaces.mount_process import files_of
from wrkfs.config import StoreConfig, VolumeConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from boxd.privileged.local import LocalHost

    Handler: TypeAlias = Callable[[LocalHost, Any, list[int]], Awaitable[Any]]
    """Carries out a call, which came with descriptors; returns the answer.

    The caller closes the descriptors of the call.
    """


SANITISE_S = 60.0
"""Seconds after which the sanitiser of a document is ended. It has a limit of processor time."""
AT_ONCE: dict[type[calls.Call], int] = {
    calls.Clone: 32,
    calls.Create: 32,
    calls.EnsureMount: 16,
    calls.OpenJournals: 8,
    calls.Sanitise: 8,
    calls.WriteDirectory: 64,
}
"""Maximum number of calls at a time of kinds that start processes or write files. Others wait."""


class Descriptors(list[int]):
    """An answer of descriptors. The sender of the answer closes them."""


async def _plan(host: LocalHost, plan: calls.Plan) -> BoxPlan:
    """Return the plan with the paths of this host. Raises UnknownImage or Unsupported.

    Rights to run containers, and other runtimes than the default, need a flavor of the operator.
    """
    await host.backend.require_kind(plan.oci_runtime, containers=plan.containers)
    kinds = {(flavor.runtime, flavor.containers) for flavor in host.catalog.flavors()}
    if (plan.oci_runtime, plan.containers) not in kinds | {("", False)}:
        raise Unsupported("no flavor has this runtime and these rights")
    if not plan.in_catalog and not host.backend.capabilities().any_image:
        raise Unsupported(f"image {plan.image!r} is not in the catalog")
    return BoxPlan(
        box_id=plan.box_id,
        hostname=plan.hostname,
        image=plan.image,
        rootfs=host.catalog.rootfs(plan.image) if plan.in_catalog else None,
        runtime=host.runtime,
        run_dir=host.directories.path(plan.box_id),
        cpus=plan.cpus,
        mem_mb=plan.mem_mb,
        pids=plan.pids,
        egress=plan.egress,
        disk_mb=plan.disk_mb,
        template=plan.template,
        oci_runtime=plan.oci_runtime,
        containers=plan.containers,
    )


async def _mounted(host: LocalHost, volume: str) -> Path:
    """Return the mount point of a volume that is mounted. Raises BadRequest."""
    if volume not in await host.mounts.present():
        raise BadRequest(f"volume {volume} has no mount on this host")
    return host.mount_point(volume)


async def _start_servers(
    host: LocalHost, _call: calls.StartServers, _: list[int]
) -> calls.ServersStarted:
    servers = await host.start_servers()
    user, objects = host.users.of(FRONT), servers.objects
    if objects is None:
        return calls.ServersStarted(servers.dsn, None, "", "", user)
    return calls.ServersStarted(servers.dsn, objects.endpoint, objects.bucket, objects.region, user)


async def _start_boxes(host: LocalHost, call: calls.StartBoxes, _: list[int]) -> calls.Started:
    await host.start_boxes(call.existing)
    return calls.Started(
        host.backend.name, host.backend.capabilities(), str(host.runtime.resolve())
    )


async def _set_identity(host: LocalHost, call: calls.SetIdentity, _: list[int]) -> None:
    if await host.identity():
        raise BadRequest("the installation has an identity already")
    await host.set_identity(call.value)


async def _create(host: LocalHost, call: calls.Create, _: list[int]) -> None:
    await host.backend.create(await _plan(host, call.plan))


async def _clone(host: LocalHost, call: calls.Clone, _: list[int]) -> None:
    await host.backend.clone(await _plan(host, call.plan), call.snapshot_id)


async def _attach_drive(host: LocalHost, call: calls.AttachDrive, _: list[int]) -> None:
    await host.backend.attach_drive(call.box_id, await _mounted(host, call.volume))


async def _resume(host: LocalHost, call: calls.Resume, _: list[int]) -> None:
    drive = None if call.volume is None else await _mounted(host, call.volume)
    await host.backend.resume(call.box_id, drive)


async def _tcp_socket(host: LocalHost, call: calls.TcpSocket, _: list[int]) -> Descriptors:
    sock = await host.backend.tcp_socket(call.box_id, call.family)
    return Descriptors([] if sock is None else [sock.detach()])


async def _suspect_inits(host: LocalHost, call: calls.SuspectInits, _: list[int]) -> list[str]:
    return sorted(await host.backend.suspect_inits(call.box_ids))


async def _ensure_mount(host: LocalHost, call: calls.EnsureMount, _: list[int]) -> None:
    # The sandbox of a mount shows the files that the connection string names.
    try:
        named = set(files_of(call.meta_dsn))
    except ValueError as error:
        raise BadRequest(f"not a connection string: {error}") from None
    if not named <= set(files_of(host.dsn)):
        raise BadRequest("the connection string of a volume names files of the host")
    store = StoreConfig(
        call.endpoint, call.bucket, call.prefix, call.region, call.access_key, call.secret_key
    )
    await host.mounts.ensure(VolumeConfig(call.volume, call.schema, call.meta_dsn, store))


async def _open_journals(host: LocalHost, call: calls.OpenJournals, _: list[int]) -> Descriptors:
    return Descriptors([await host.open_journals(call.volume, call.schema)])


async def _directory_ids(host: LocalHost, _call: calls.DirectoryIds, _: list[int]) -> list[str]:
    return sorted(await host.directories.box_ids())


async def _bind(host: LocalHost, call: calls.Bind, _: list[int]) -> Descriptors:
    return Descriptors([(await host.directories.bind(call.box_id)).detach()])


async def _sanitise(host: LocalHost, _call: calls.Sanitise, received: list[int]) -> int:
    try:
        async with asyncio.timeout(SANITISE_S):
            return await host.sanitise(*received)
    except TimeoutError:
        raise Unavailable("the document takes too long to sanitise; make it smaller") from None


async def _issue(host: LocalHost, call: calls.Issue, _: list[int]) -> tuple[str, str]:
    access_key, secret = await host.issuer.issue(call.prefix)
    return access_key, secret.reveal()


HANDLERS: dict[type[calls.Call], Handler] = {
    calls.AdminKeys: lambda host, _call, _: host.admin_keys(),
    calls.AttachDrive: _attach_drive,
    calls.Bind: _bind,
    calls.Clone: _clone,
    calls.Create: _create,
    calls.Credentials: lambda host, _call, _: host.issuer.credentials(),
    calls.Destroy: lambda host, call, _: host.backend.destroy(call.box_id),
    calls.DetachDrive: lambda host, call, _: host.backend.detach_drive(call.box_id),
    calls.DirectoryExists: lambda host, call, _: host.directories.exists(call.box_id),
    calls.DirectoryIds: _directory_ids,
    calls.DiscardMemory: lambda host, call, _: host.backend.discard_memory(call.box_id),
    calls.DropSnapshot: lambda host, call, _: host.backend.drop_snapshot(call.snapshot_id),
    calls.EnsureMount: _ensure_mount,
    calls.Freeze: lambda host, call, _: host.backend.freeze(call.box_id),
    calls.Identity: lambda host, _call, _: host.identity(),
    calls.Issue: _issue,
    calls.ListBoxes: lambda host, _call, _: host.backend.list(),
    calls.MountHealth: lambda host, call, _: host.mounts.health(call.volume),
    calls.OomKills: lambda host, call, _: host.backend.oom_kills(call.box_id),
    calls.OpenJournals: _open_journals,
    calls.PresentMounts: lambda host, _call, _: host.mounts.present(),
    calls.ReleaseMount: lambda host, call, _: host.mounts.release(call.volume),
    calls.RemoveDirectory: lambda host, call, _: host.directories.remove(call.box_id),
    calls.Rename: lambda host, call, _: host.backend.rename(call.box_id, call.hostname),
    calls.RequireKind: lambda host, call, _: host.backend.require_kind(
        call.runtime, containers=call.containers
    ),
    calls.RestoreSnapshot: lambda host, call, _: host.backend.restore_snapshot(
        call.box_id, call.snapshot_id
    ),
    calls.Resume: _resume,
    calls.Revoke: lambda host, call, _: host.issuer.revoke(call.access_key),
    calls.Sanitise: _sanitise,
    calls.SaveMemory: lambda host, call, _: host.backend.save_memory(call.box_id),
    calls.SetIdentity: _set_identity,
    calls.Snapshot: lambda host, call, _: host.backend.snapshot(
        call.box_id, call.snapshot_id, lasting=call.lasting, memory=call.memory
    ),
    calls.SnapshotBytes: lambda host, call, _: host.backend.snapshot_bytes(call.snapshot_id),
    calls.Snapshots: lambda host, _call, _: host.backend.snapshots(),
    calls.Start: lambda host, call, _: host.backend.start(call.box_id),
    calls.StartBoxes: _start_boxes,
    calls.StartServers: _start_servers,
    calls.StateOfInit: lambda host, call, _: host.backend.init_state(call.box_id),
    calls.Stats: lambda host, call, _: host.backend.stats(call.box_id),
    calls.Stop: lambda host, call, _: host.stop(everything=call.everything),
    calls.StopBox: lambda host, call, _: host.backend.stop(call.box_id),
    calls.SuspectInits: _suspect_inits,
    calls.TcpSocket: _tcp_socket,
    calls.Thaw: lambda host, call, _: host.backend.thaw(call.box_id),
    calls.WriteDirectory: lambda host, call, _: host.directories.write(
        call.box_id, call.config, call.private_key
    ),
}
"""The handler of each call."""
