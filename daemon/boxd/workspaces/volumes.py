"""Finds the volumes of workspaces, or creates them with role, schema, credential and row.

Critical section: a lock per (owner, workspace) serialises the creation of a volume. Between daemons
a unique constraint of the control database decides, and the loser undoes its work.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from boxd.clock import SystemClock
from boxd.errors import BoxdError, Conflict, NotFound, Unavailable
from boxd.model.volume import Volume
from boxd.secret import Secret, random_hex
from boxd.workspaces.credentials import OWN_PREFIX
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import WrkfsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from boxd.clock import Clock
    from boxd.model.usage import DriveUse
    from boxd.workspaces.credentials import ObjectStorage
    from boxd.workspaces.provision import Provisioner
    from boxd.workspaces.seal import Sealer

RESTORE_MARGIN = timedelta(minutes=1)
"""A volume cannot be restored when less than this time in the trash is left."""

_log = logging.getLogger(__name__)


class VolumeStore(Protocol):
    """The part of the control database for volumes."""

    async def find_volume(self, owner: str, workspace: str | None) -> Volume | None:
        """Return the volume of an owner's workspace (None: the default one)."""
        ...

    async def add_volume(self, volume: Volume) -> None:
        """Record a volume. Raises Conflict if (owner, workspace) has another one."""
        ...

    async def list_volumes(self, owner: str | None = None) -> list[Volume]:
        """Return the volumes of an owner, or of all owners."""
        ...

    async def trash_volume(self, volume_id: str, until: datetime) -> None:
        """Move a volume to the trash."""
        ...

    async def restore_volume(self, volume_id: str, workspace: str | None) -> None:
        """Move a volume out of the trash. Raises NotFound or Conflict."""
        ...

    async def remove_volume(self, volume_id: str) -> None:
        """Remove the row of a volume, if it exists."""
        ...


class Volumes:
    """All volumes of an installation."""

    def __init__(
        self,
        store: VolumeStore,
        provisioner: Provisioner,
        storage: ObjectStorage,
        sealer: Sealer,
        *,
        clock: Clock | None = None,
        trash: timedelta = timedelta(0),
    ) -> None:
        """Existing volumes use the current location of `storage`, too.

        Removed volumes can be restored for the time `trash`.
        """
        self._store = store
        self._provisioner = provisioner
        self._issuer = storage.issuer
        self._sealer = sealer
        self._target = storage.target
        self._prefixes = storage.prefixes
        self._clock = clock or SystemClock()
        self._trash = trash
        self._locks: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._closing: set[tuple[str, str | None]] = set()

    async def find(self, owner: str, workspace: str | None) -> VolumeConfig | None:
        """Return the volume of a workspace; None if it does not exist.

        Raises Unavailable, and Conflict inside `closing`.
        """
        self._check_open(owner, workspace)
        volume = await self._store.find_volume(owner, workspace)
        return None if volume is None else self._config(volume)

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """Return the volume of a workspace; create it if needed.

        Raises Unavailable; then nothing was created.
        """
        config = await self.find(owner, workspace)
        if config is not None:
            return config
        lock = self._locks.setdefault((owner, workspace), asyncio.Lock())
        async with lock:
            config = await self.find(owner, workspace)
            return config or await self._create(owner, workspace)

    @contextmanager
    def closing(self, owner: str, workspace: str | None) -> Iterator[None]:
        """Reject all users of the volume with Conflict while the context lasts.

        Raises Conflict if another `closing` of the volume is active.
        """
        self._check_open(owner, workspace)
        self._closing.add((owner, workspace))
        try:
            yield
        finally:
            self._closing.discard((owner, workspace))

    async def id_of(self, owner: str, workspace: str | None) -> str | None:
        """Return the id of a workspace's volume, or None if it has none. Raises Unavailable."""
        volume = await self._store.find_volume(owner, workspace)
        return None if volume is None else volume.id

    async def is_empty(self, owner: str, workspace: str | None) -> bool:
        """Return whether the volume has no files, or does not exist. Raises Unavailable."""
        volume = await self._store.find_volume(owner, workspace)
        return volume is None or await self._provisioner.is_empty(volume.schema)

    async def usage(self, owner: str) -> dict[str | None, DriveUse]:
        """Return the use of each volume of an owner, by workspace. Raises Unavailable."""
        volumes = {volume.schema: volume for volume in await self._in_use(owner)}
        uses = await self._provisioner.usage(list(volumes))
        return {volumes[name].workspace: use for name, use in uses.items()}

    async def remove(self, owner: str, workspace: str | None) -> datetime | None:
        """Move a volume to the trash, or delete it if there is no trash time.

        Call it inside `closing`. A missing volume is not an error. Returns the time until which the
        volume can be restored; None if it cannot be restored.
        """
        volume = await self._store.find_volume(owner, workspace)
        if volume is None:
            return None
        lock = self._locks.setdefault((owner, workspace), asyncio.Lock())
        async with lock:
            if not self._trash:
                await self._delete(volume)
                return None
            until = self._clock.now() + self._trash
            await self._store.trash_volume(volume.id, until)
            return until

    async def empty_trash(self) -> int:
        """Delete the volumes whose time in the trash is over; return their number.

        The method logs a failure, and the next call tries again. Raises Unavailable.
        """
        now, deleted = self._clock.now(), 0
        for volume in await self._store.list_volumes():
            if volume.trashed_until is None or volume.trashed_until > now:
                continue
            try:
                await self._delete(volume)
                deleted += 1
            except BoxdError as error:
                _log.warning("volume %s in the trash not deleted yet: %s", volume.id, error)
        return deleted

    async def restore(self, volume_id: str, workspace: str | None) -> Volume:
        """Restore a volume from the trash as the drive of a workspace that has none.

        Returns the row that the volume had in the trash. Raises Conflict, or NotFound, for example
        after its trash time.
        """
        end = self._clock.now() + RESTORE_MARGIN
        for volume in await self._store.list_volumes():
            until = volume.trashed_until
            if volume.id == volume_id and until is not None and until > end:
                await self._store.restore_volume(volume_id, workspace)
                return volume
        raise NotFound(f"no removed volume {volume_id}; `boxd volumes ls` lists them")

    async def _delete(self, volume: Volume) -> None:
        """Delete metadata, objects and credential, and the row last, so that it can be repeated."""
        store = self._config(volume).store
        await self._provisioner.drop(volume.role)
        await _clear(store)
        # If volumes share a credential, it is the operator's, and `revoke` does nothing.
        await self._issuer.revoke(store.access_key)
        await self._store.remove_volume(volume.id)

    async def all(self) -> list[VolumeConfig]:
        """Return all volumes of the installation outside the trash. Raises Unavailable."""
        return [self._config(volume) for volume in await self._in_use()]

    def config(self, volume: Volume) -> VolumeConfig:
        """Return the configuration of a volume for its mounts. Raises Unavailable."""
        return self._config(volume)

    async def _in_use(self, owner: str | None = None) -> list[Volume]:
        volumes = await self._store.list_volumes(owner)
        return [volume for volume in volumes if volume.trashed_until is None]

    async def sizes(self) -> dict[str, int]:
        """Return the bytes in each owner's volumes, including the trash. Raises Unavailable."""
        volumes = await self._store.list_volumes()
        uses = await self._provisioner.usage([volume.schema for volume in volumes])
        sums: Counter[str] = Counter()
        for volume in volumes:
            use = uses.get(volume.schema)
            sums[volume.owner] += use.bytes if use else 0
        return sums

    async def wasteful(self) -> list[VolumeConfig]:
        """Return the volumes without a session that have something to free. Raises Unavailable."""
        volumes = {volume.role: volume for volume in await self._store.list_volumes()}
        names = await self._provisioner.wasteful(list(volumes))
        return [self._config(volumes[name]) for name in names]

    async def sweep(self) -> int:
        """Remove incomplete volumes of a killed daemon; return the number of roles and credentials.

        Call it at start, before volumes are created. It never removes a volume with files, or a
        credential whose prefix does not match `OWN_PREFIX`.
        """
        volumes = await self._store.list_volumes()
        roles = {volume.role for volume in volumes}
        removed = 0
        for name in await self._provisioner.names():
            if name in roles:
                continue
            if await self._provisioner.is_unused(name):
                await self._provisioner.drop(name)
                removed += 1
            else:
                _log.warning("volume %s contains files, but no workspace uses it", name)
        prefixes = {volume.prefix for volume in volumes}
        for access_key, prefix in await self._issuer.credentials():
            if OWN_PREFIX.fullmatch(prefix) and prefix.removesuffix("/") not in prefixes:
                await self._issuer.revoke(access_key)
                removed += 1
        return removed

    def _check_open(self, owner: str, workspace: str | None) -> None:
        if (owner, workspace) in self._closing:
            raise Conflict(f"workspace {workspace} is being removed")

    async def _create(self, owner: str, workspace: str | None) -> VolumeConfig:
        """Create credential, role with schema, and row. A failure undoes the steps in reverse."""
        used_prefixes = {volume.prefix for volume in await self._store.list_volumes()}
        prefix = self._prefixes.choose(used_prefixes)
        async with AsyncExitStack() as undo:
            access_key, secret = await self._issuer.issue(prefix)
            undo.push_async_callback(self._issuer.revoke, access_key)
            role, password = await self._provisioner.create()
            undo.push_async_callback(self._provisioner.drop, role)
            volume_id = random_hex(16)
            target = self._target
            config = VolumeConfig(
                volume=volume_id,
                schema=role,
                meta_dsn=self._provisioner.dsn(role, password),
                store=StoreConfig(
                    endpoint=target.endpoint,
                    bucket=target.bucket,
                    prefix=prefix,
                    region=target.region,
                    access_key=access_key,
                    secret_key=secret.reveal(),
                ),
            )
            sealed = self._sealer.seal(volume_id, config.to_json())
            now = self._clock.now()
            volume = Volume(volume_id, owner, workspace, role, role, prefix, sealed, now)
            try:
                await self._store.add_volume(volume)
            except Conflict:
                # Another daemon was faster: its volume counts, and this one is undone.
                winner = await self.find(owner, workspace)
                if winner is None:
                    raise
                return winner
            undo.pop_all()
        return config

    def _config(self, volume: Volume) -> VolumeConfig:
        """Return the configuration of a volume, at the current places of database and store."""
        config = VolumeConfig.from_json(self._sealer.unseal(volume.id, volume.sealed))
        password = Secret(unquote(urlsplit(config.meta_dsn).password or ""))
        target = self._target
        store = replace(
            config.store, endpoint=target.endpoint, bucket=target.bucket, region=target.region
        )
        meta_dsn = self._provisioner.dsn(volume.role, password)
        return replace(config, meta_dsn=meta_dsn, store=store)


async def _clear(store: StoreConfig) -> None:
    """Remove every object of a volume. Raises Unavailable."""
    blocks = S3Blocks(store)
    try:
        await blocks.clear()
    except WrkfsError as error:
        raise Unavailable(f"the object store: {error}; try again") from error
    finally:
        await blocks.close()
