"""Volumes of workspaces: found, or made with role, schema, prefix credential and row.

Critical section: making the volume of one (owner, workspace) is under that pair's lock; between
daemons the control database's uniqueness decides, and the loser undoes what it made.
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
from boxd.workspaces.credentials import OWN_PREFIX, RandomPrefixes
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import WrkfsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from boxd.clock import Clock
    from boxd.model.usage import DriveUse
    from boxd.workspaces.credentials import CredentialIssuer, PrefixChooser, StoreTarget
    from boxd.workspaces.provision import Provisioner
    from boxd.workspaces.seal import Sealer

RESTORE_MARGIN = timedelta(minutes=1)
"""So long before a volume leaves the trash nobody takes it out any more."""

_log = logging.getLogger(__name__)


class VolumeStore(Protocol):
    """What of the control database concerns volumes."""

    async def find_volume(self, owner: str, workspace: str | None) -> Volume | None:
        """The volume of an owner's workspace (None: the default one)."""
        ...

    async def add_volume(self, volume: Volume) -> None:
        """Records a volume; Conflict when (owner, workspace) has another one."""
        ...

    async def list_volumes(self, owner: str | None = None) -> list[Volume]:
        """The volumes of an owner, or of all."""
        ...

    async def trash_volume(self, volume_id: str, until: datetime) -> None:
        """Puts a volume into the trash."""
        ...

    async def restore_volume(self, volume_id: str, workspace: str | None) -> None:
        """Takes a volume out of the trash. NotFound, Conflict."""
        ...

    async def remove_volume(self, volume_id: str) -> None:
        """Forgets a volume. No error if it is gone."""
        ...


class Volumes:
    """All volumes of an installation."""

    def __init__(
        self,
        store: VolumeStore,
        provisioner: Provisioner,
        issuer: CredentialIssuer,
        sealer: Sealer,
        target: StoreTarget,
        *,
        prefixes: PrefixChooser | None = None,
        clock: Clock | None = None,
        trash: timedelta = timedelta(0),
    ) -> None:
        """`target` is where the object store is now; stored volumes follow it. `trash`: so long
        removed volumes can be restored."""
        self._store = store
        self._provisioner = provisioner
        self._issuer = issuer
        self._sealer = sealer
        self._target = target
        self._prefixes = prefixes or RandomPrefixes()
        self._clock = clock or SystemClock()
        self._trash = trash
        self._locks: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._closing: set[tuple[str, str | None]] = set()

    async def find(self, owner: str, workspace: str | None) -> VolumeConfig | None:
        """The volume of a workspace, None when there is none.

        Raises Unavailable; Conflict within `closing`.
        """
        self._check_open(owner, workspace)
        volume = await self._store.find_volume(owner, workspace)
        return None if volume is None else self._config(volume)

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """The volume of a workspace, made when there is none.

        Raises Unavailable; then nothing was made.
        """
        found = await self.find(owner, workspace)
        if found is not None:
            return found
        lock = self._locks.setdefault((owner, workspace), asyncio.Lock())
        async with lock:
            found = await self.find(owner, workspace)
            return found or await self._make(owner, workspace)

    @contextmanager
    def closing(self, owner: str, workspace: str | None) -> Iterator[None]:
        """Nobody finds the volume while the context lasts: Conflict, also for a second one here."""
        self._check_open(owner, workspace)
        self._closing.add((owner, workspace))
        try:
            yield
        finally:
            self._closing.discard((owner, workspace))

    async def id_of(self, owner: str, workspace: str | None) -> str | None:
        """The id of a workspace's volume, None when there is none. Raises Unavailable."""
        volume = await self._store.find_volume(owner, workspace)
        return None if volume is None else volume.id

    async def is_empty(self, owner: str, workspace: str | None) -> bool:
        """Whether no name stands in the volume, or there is none. Raises Unavailable."""
        volume = await self._store.find_volume(owner, workspace)
        return volume is None or await self._provisioner.is_empty(volume.schema)

    async def usage(self, owner: str) -> dict[str | None, DriveUse]:
        """What each volume of an owner holds, by workspace. Raises Unavailable."""
        volumes = {one.schema: one for one in await self._in_use(owner)}
        found = await self._provisioner.usage(list(volumes))
        return {volumes[name].workspace: use for name, use in found.items()}

    async def remove(self, owner: str, workspace: str | None) -> datetime | None:
        """Puts a volume into the trash, or destroys it if nothing is kept there. No error when
        there is none. Nobody may use it: within `closing`. Until when it can be restored; None: not
        at all.
        """
        volume = await self._store.find_volume(owner, workspace)
        if volume is None:
            return None
        lock = self._locks.setdefault((owner, workspace), asyncio.Lock())
        async with lock:
            if not self._trash:
                await self._destroy(volume)
                return None
            until = self._clock.now() + self._trash
            await self._store.trash_volume(volume.id, until)
            return until

    async def empty_trash(self) -> int:
        """Destroys what has been in the trash for its time; how many volumes that were.

        What fails is told in the log, and done the next time. Raises Unavailable.
        """
        now, destroyed = self._clock.now(), 0
        for volume in await self._store.list_volumes():
            if volume.trashed_until is None or volume.trashed_until > now:
                continue
            try:
                await self._destroy(volume)
                destroyed += 1
            except BoxdError as error:
                _log.warning("removed volume %s not destroyed yet: %s", volume.id, error)
        return destroyed

    async def restore(self, volume_id: str, workspace: str | None) -> Volume:
        """Gives a volume of the trash back to its owner, as the drive of a workspace that has none.

        Returns what it was. NotFound, also when its time is over; Conflict.
        """
        end = self._clock.now() + RESTORE_MARGIN
        for volume in await self._store.list_volumes():
            until = volume.trashed_until
            if volume.id == volume_id and until is not None and until > end:
                await self._store.restore_volume(volume_id, workspace)
                return volume
        raise NotFound(f"no removed volume {volume_id}; `boxd volumes ls` lists them")

    async def _destroy(self, volume: Volume) -> None:
        """Names, objects, credential, and the row last: what was cut off can be done again."""
        store = self._config(volume).store
        await self._provisioner.drop(volume.role)
        await _clear(store)
        # A credential that volumes share is the operator's, and no end of it is meant here.
        await self._issuer.revoke(store.access_key)
        await self._store.remove_volume(volume.id)

    async def all(self) -> list[VolumeConfig]:
        """Every volume of the installation that is in use. Raises Unavailable."""
        return [self._config(volume) for volume in await self._in_use()]

    def config(self, volume: Volume) -> VolumeConfig:
        """What a mount of a stored volume gets. Raises Unavailable."""
        return self._config(volume)

    async def _in_use(self, owner: str | None = None) -> list[Volume]:
        return [one for one in await self._store.list_volumes(owner) if one.trashed_until is None]

    async def sizes(self) -> dict[str, int]:
        """Bytes that the volumes of each owner hold, those in the trash included. Unavailable."""
        volumes = await self._store.list_volumes()
        held = await self._provisioner.usage([volume.schema for volume in volumes])
        sums: Counter[str] = Counter()
        for volume in volumes:
            use = held.get(volume.schema)
            sums[volume.owner] += use.bytes if use else 0
        return sums

    async def wasteful(self) -> list[VolumeConfig]:
        """Volumes that nobody has open and that keep what could be freed. Raises Unavailable."""
        volumes = {volume.role: volume for volume in await self._store.list_volumes()}
        names = await self._provisioner.wasteful(list(volumes))
        return [self._config(volumes[name]) for name in names]

    async def sweep(self) -> int:
        """Removes what a killed daemon left half made; how many roles and credentials that were.

        Call it at start, before volumes are made. A volume with files is never removed, whatever
        the control database says, nor is a credential under another prefix than ours look like.
        """
        volumes = await self._store.list_volumes()
        known = {volume.role for volume in volumes}
        removed = 0
        for name in await self._provisioner.names():
            if name in known:
                continue
            if await self._provisioner.is_unused(name):
                await self._provisioner.drop(name)
                removed += 1
            else:
                _log.warning("volume %s holds files but no workspace names it", name)
        prefixes = {volume.prefix for volume in volumes}
        for access_key, prefix in await self._issuer.credentials():
            if OWN_PREFIX.fullmatch(prefix) and prefix.removesuffix("/") not in prefixes:
                await self._issuer.revoke(access_key)
                removed += 1
        return removed

    def _check_open(self, owner: str, workspace: str | None) -> None:
        if (owner, workspace) in self._closing:
            raise Conflict(f"workspace {workspace} is being removed")

    async def _make(self, owner: str, workspace: str | None) -> VolumeConfig:
        """Credential, role and schema, row; undone in reverse when a step fails."""
        taken = {volume.prefix for volume in await self._store.list_volumes()}
        prefix = self._prefixes.choose(taken)
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
                # Another daemon was faster; ours is undone and theirs is the volume.
                winner = await self.find(owner, workspace)
                if winner is None:
                    raise
                return winner
            undo.pop_all()
        return config

    def _config(self, volume: Volume) -> VolumeConfig:
        """A stored volume's configuration, at the present places of database and store."""
        config = VolumeConfig.from_json(self._sealer.unseal(volume.id, volume.sealed))
        password = Secret(unquote(urlsplit(config.meta_dsn).password or ""))
        target = self._target
        store = replace(
            config.store, endpoint=target.endpoint, bucket=target.bucket, region=target.region
        )
        meta_dsn = self._provisioner.dsn(volume.role, password)
        return replace(config, meta_dsn=meta_dsn, store=store)


async def _clear(store: StoreConfig) -> None:
    """Removes every object of a volume. Raises Unavailable."""
    blocks = S3Blocks(store)
    try:
        await blocks.clear()
    except WrkfsError as error:
        raise Unavailable(f"the object store: {error}; try again") from error
    finally:
        await blocks.close()
