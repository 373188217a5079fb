"""Maintenance of images and volumes by commands that run beside the service.

They do not build a `Service`. The commands for volumes need the database of a running service.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from boxd.backends.host.names import HostNames
from boxd.backends.records import Records
from boxd.backends.runc.origins import Origins
from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.statedir import make_private
from boxd.errors import Unavailable
from boxd.images.catalog import Catalog
from boxd.store.postgres.store import PostgresStore
from boxd.workspaces.credentials import ExternalStore, ObjectStorage, StoreTarget
from boxd.workspaces.journals import (
    journal_directories,
    journal_lines,
    journal_row,
    read_journals,
)
from boxd.workspaces.provision import Provisioner
from boxd.workspaces.seal import Sealer
from boxd.workspaces.volume_admin import Row, credentials_text, listing, restore
from boxd.workspaces.volumes import Volumes
from objectserver.config import BUCKET, REGION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from boxd.config import Config
    from boxd.images.importer import ImportResult
    from boxd.model.catalog import Image
    from boxd.model.volume import Volume
    from boxd.workspaces.journals import JournalRow

BESIDE_S = 5.0
"""Seconds within which the database of a running service must answer."""


async def build_image(config: Config, name: str, progress: Callable[[str], None]) -> None:
    """Build an image. Raises UnknownImage, Conflict or Unavailable."""
    make_private(config.state_dir)
    catalog = catalog_of(config)
    await catalog.build(name, progress)
    await asyncio.to_thread(catalog.prune, partial(_image_users, config))


async def import_image(
    config: Config, name: str, source: Path, progress: Callable[[str], None]
) -> ImportResult:
    """Create an image from a directory or archive; return its size and notes.

    Raises BadName, BadRequest, Conflict or Unavailable.
    """
    make_private(config.state_dir)
    catalog = catalog_of(config)
    imported = await catalog.import_image(name, source, progress)
    await asyncio.to_thread(catalog.prune, partial(_image_users, config))
    return imported


def remove_image(config: Config, name: str) -> None:
    """Remove an image. Raises UnknownImage, or Conflict with the boxes that use the image."""
    catalog = catalog_of(config)
    users = partial(_image_users, config)
    catalog.remove(name, users)
    catalog.prune(users)


def known_images(config: Config) -> list[Image]:
    """Return the images of the catalog."""
    return catalog_of(config).images()


def catalog_of(config: Config) -> Catalog:
    """Return the catalog of an installation's images."""
    return Catalog(config.state_dir / "images", own=config.state_dir)


def _image_users(config: Config) -> dict[Path, list[str]]:
    """Return the names of the boxes and snapshots that use each image version, by its path."""
    users: dict[Path, list[str]] = {}
    names = HostNames(config.instance, config.state_dir.resolve())
    box_plans = (record.plan for record in Records(names).all())
    boxes = ((f"{plan.hostname} ({plan.box_id[:12]})", plan) for plan in box_plans)
    origins = (origin.plan for origin in Origins(names).all() if not origin.plan.template)
    snapshots = ((f"a snapshot of {plan.hostname}", plan) for plan in origins)
    for name, plan in itertools.chain(boxes, snapshots):
        if plan.rootfs is not None:
            users.setdefault(plan.rootfs.resolve(), []).append(name)
    return users


async def list_volumes(config: Config) -> list[Row]:
    """Return a row for each volume. Raises Unavailable."""
    async with _stored_volumes(config) as (store, _):
        return listing(await store.list_volumes())


async def volume_credentials(config: Config, volume_id: str) -> str:
    """Return the text of a credentials file for a volume. Raises NotFound or Unavailable."""
    async with _stored_volumes(config) as (store, volumes):
        return await credentials_text(store, volumes, volume_id)


async def restore_volume(config: Config, volume_id: str, workspace: str | None) -> str:
    """Restore a removed volume; return the name of its workspace.

    `workspace` None: the workspace that the volume belonged to. Raises BadName, NotFound or
    Conflict.
    """
    async with _stored_volumes(config) as (store, volumes):
        return await restore(store, volumes, volume_id, workspace)


async def volume_journals(config: Config) -> list[JournalRow]:
    """Return a row for each journal in the state directory, the oldest first.

    Without a running service the rows name no workspace. Raises Unavailable if the directory
    cannot be read.
    """
    directories = journal_directories(config.state_dir)
    journals = await asyncio.to_thread(read_journals, directories)
    volumes: list[Volume] = []
    with suppress(Unavailable):
        async with _stored_volumes(config) as (store, _):
            volumes = await store.list_volumes()
    return [journal_row(journal, volumes) for journal in journals]


def show_journal(config: Config, name: str) -> Iterator[str]:
    """Yield a line for each change in a journal. Raises NotFound, Unavailable."""
    return journal_lines(journal_directories(config.state_dir), name)


@asynccontextmanager
async def _stored_volumes(config: Config) -> AsyncIterator[tuple[PostgresStore, Volumes]]:
    """Yield the store and the volumes of a running service. Raises Unavailable if none runs."""
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
        storage = ObjectStorage(target, issuer)
        yield store, Volumes(store, Provisioner(dsn), storage, Sealer(key))
    finally:
        await store.close()
