"""Restores a state directory from a backup, so that `boxd serve` continues the old service.

All work happens in `.restore` below the state directory. The restore first verifies the whole
archive, and then imports the rows in one transaction. Finally it moves the files into place. The
file `instance` comes last, because no service runs without it. A failure undoes everything.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from boxd.backup.archive import CATALOGS, Manifest, Row, StateFile, read_archive
from boxd.backup.creation import INSTANCE, KEYS
from boxd.backup.keyfile import read_key
from boxd.backup.target import newest, split_source
from boxd.backup.target_url import open_target
from boxd.boxes.lifecycle import adoption, templates
from boxd.embedded.files import sync_directory, write_private
from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.statedir import LOCK, hold_lock, make_private
from boxd.errors import Conflict, Unavailable
from boxd.store.export import drop_service, importing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    from boxd.backup.keyfile import Key
    from boxd.config import Config
    from boxd.store.export import HostLosses

POSTGRES = "postgres"
STAGE = ".restore"
HOST_SETTINGS = (templates.SETTING, adoption.BOOT, adoption.ENDED)
"""Settings that describe a host. A restore drops them, because the new host is a different one."""
DETAIL = "restored from a backup; its disk was lost"
"""The detail that `ls` shows for a box until its next start, which is from its image."""
_SERVICE_FILES = (
    INSTANCE,
    KEYS,
    POSTGRES,
    "objects",
    "boxes",
    "disks",
    "disks.img",
    "snapshots",
    "memories",
    "mounts",
)
"""Names in a state directory that had a service. Images and the guest runtime do not count."""


@dataclass(frozen=True, slots=True)
class _Archive:
    """A downloaded archive, which is read twice."""

    file: BinaryIO
    key: Key
    name: str

    def open(self) -> tuple[Manifest, Iterator[StateFile | Row]]:
        """Read from the beginning, as `read_archive` does."""
        self.file.seek(0)
        return read_archive(self.file, self.key, self.name)


async def restore(
    config: Config,
    source: str,
    key_file: Path,
    now: datetime,
    progress: Callable[[str], None],
    *,
    keep_database: bool,
) -> list[str]:
    """Restore a state directory from `source`; return lines for the user.

    `keep_database` keeps the rows of an external database, which are newer than the archive's.
    Raises Conflict if the state directory or the database already has a service, NotFound,
    BadRequest, or Unavailable, for example for a damaged archive. After an error nothing has
    changed.
    """
    state = config.state_dir
    if keep_database and config.meta_dsn is None:
        raise Conflict("--keep-database is for a database given with --meta-dsn-file")
    key = read_key(key_file)
    place, name = split_source(source)
    target = open_target(place, config.backup_store_file)
    name = name or newest(await target.names(), target.url)
    existed = state.exists()
    make_private(state)
    async with AsyncExitStack() as stack:
        stack.enter_context(_host_errors(state))
        if not existed:
            stack.callback(_remove_empty, state)
        stack.callback(os.close, hold_lock(state))
        await _clear_interrupted(state)
        _check_unserved(state)
        stage = state / STAGE
        stage.mkdir(mode=0o700)
        stack.callback(shutil.rmtree, stage, ignore_errors=True)
        with tempfile.TemporaryFile(dir=stage) as file:
            archive = _Archive(file, key, name)
            progress(f"Fetching {name}")
            await target.get(name, archive.file)
            progress(f"Checking {name}")
            manifest = await asyncio.to_thread(_stage, archive, stage)
            progress("Restoring the control database")
            losses = await _fill(config, stage, archive, now, keep_database=keep_database)
        try:
            _publish(stage, state)
        except BaseException:
            _unpublish(stage, state)
            if config.meta_dsn is not None and not keep_database:
                await drop_service(config.meta_dsn)
            raise
    return _summary(config, name, manifest, losses)


@contextmanager
def _host_errors(state: Path) -> Iterator[None]:
    """Turn an OSError of the body into Unavailable."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{error.filename or state}: {error.strerror}") from error


def _stage(archive: _Archive, stage: Path) -> Manifest:
    """Read the whole archive, which verifies it, and write its files into the stage."""
    manifest, items = archive.open()
    (stage / KEYS).mkdir(mode=0o700)
    for item in items:
        if isinstance(item, StateFile):
            write_private(stage / item.name, item.data)
    if not (stage / INSTANCE).exists() or not (stage / KEYS / "master.key").exists():
        raise Unavailable(f"{archive.name} lacks the keys of a service: use another backup")
    return manifest


async def _fill(
    config: Config, stage: Path, archive: _Archive, now: datetime, *, keep_database: bool
) -> HostLosses:
    """Import the rows into an embedded database in the stage, or into the external one."""
    if config.meta_dsn is not None:
        return await _import(config, config.meta_dsn, archive, now, keep_database=keep_database)
    postgres = EmbeddedPostgres(stage / POSTGRES)
    try:
        dsn = await postgres.start()
        return await _import(config, dsn, archive, now, keep_database=False)
    finally:
        await postgres.stop()


async def _import(
    config: Config, dsn: str, archive: _Archive, now: datetime, *, keep_database: bool
) -> HostLosses:
    manifest, items = archive.open()
    async with importing(dsn) as rows:
        if keep_database:
            await rows.check_instance(manifest.instance)
        else:
            await rows.create_schema(manifest.schema)
            for item in items:
                if isinstance(item, Row):
                    await rows.add(item.table, item.row)
        await rows.finish()
        objects = config.store_file is not None
        return await rows.discard_host_state(DETAIL, now, objects=objects, settings=HOST_SETTINGS)


def _publish(stage: Path, state: Path) -> None:
    """Move the pieces into place. The last one, `instance`, completes the service."""
    for name in CATALOGS:
        # An existing file of the operator takes precedence.
        with suppress(FileExistsError, FileNotFoundError):
            (state / name).hardlink_to(stage / name)
    for name in (POSTGRES, KEYS, INSTANCE):
        if (stage / name).exists():
            (stage / name).rename(state / name)
            sync_directory(state)


def _unpublish(stage: Path, state: Path) -> None:
    (state / INSTANCE).unlink(missing_ok=True)
    for name in CATALOGS:
        with suppress(FileNotFoundError):
            if (state / name).samefile(stage / name):
                (state / name).unlink()
    for name in (KEYS, POSTGRES):
        shutil.rmtree(state / name, ignore_errors=True)


async def _clear_interrupted(state: Path) -> None:
    """Remove the remains of a killed restore, which never has an `instance`."""
    stage = state / STAGE
    if not stage.exists():
        return
    if not (state / INSTANCE).exists():
        await EmbeddedPostgres(stage / POSTGRES).stop()
        _unpublish(stage, state)
    shutil.rmtree(stage)


def _check_unserved(state: Path) -> None:
    names = [name for name in _SERVICE_FILES if (state / name).exists()]
    if names:
        raise Conflict(
            f"{state} already has a service ({', '.join(names)}): give a --state-dir that was "
            "never served, or move that one away"
        )


def _remove_empty(state: Path) -> None:
    """Remove the new state directory, unless it contains something."""
    if {path.name for path in state.iterdir()} <= {LOCK}:
        (state / LOCK).unlink(missing_ok=True)
        state.rmdir()


def _summary(config: Config, name: str, manifest: Manifest, losses: HostLosses) -> list[str]:
    lines = [
        f"restored {name}, created {manifest.made}, into {config.state_dir}",
        f"  {losses.boxes} boxes, whose disks were lost: each starts from its image when next used",
    ]
    if losses.boxes:
        lines.append(
            "  unused boxes are removed --idle-reap after the start, with their names and "
            "deadlines: give a long time, for example --idle-reap 30d, until their owners return"
        )
    if losses.snapshots:
        lines.append(f"  {losses.snapshots} snapshots were on the lost disks and are removed")
    if losses.drives:
        lines.append(
            f"  {losses.drives} drives (/wrk) start empty: no store with their files was given"
        )
    return [*lines, f"next: boxd serve --state-dir {config.state_dir} with the flags as before"]
