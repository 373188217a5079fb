"""A fresh state directory from a backup, so that `boxd serve` goes on as the old service.

Everything is made in `.restore` below the state directory. The whole archive is proven first; the
rows are one transaction; the pieces are moved to their places at the end, `instance` last, without
which a state directory belongs to no database and is not served. What fails is taken back.
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
OF_THE_HOST = (templates.SETTING, adoption.BOOT, adoption.ENDED)
"""Settings that tell what is on a host, which is another one now."""
DETAIL = "restored from a backup; its disk was lost"
"""What `ls` tells of a box until its next start, which is from its image."""
_SERVICE = (
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
"""What a state directory that was served has. Images and the guest runtime may be there before."""


@dataclass(frozen=True, slots=True)
class _Archive:
    """An archive that was fetched; it is read twice."""

    file: BinaryIO
    key: Key
    name: str

    def open(self) -> tuple[Manifest, Iterator[StateFile | Row]]:
        """From its beginning; see `read_archive`."""
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
    """Restores; returns what to tell people. `keep_database`: its rows are there already, newer.

    Raises Conflict when the state directory or the database has a service already, NotFound,
    BadRequest, and Unavailable for an archive that is damaged. Then everything is as it was.
    """
    state = config.state_dir
    if keep_database and config.meta_dsn is None:
        raise Conflict("--keep-database is for a database given with --meta-dsn-file")
    key = read_key(key_file)
    place, name = split_source(source)
    target = open_target(place, config.backup_store_file)
    name = name or newest(await target.names(), target.url)
    there = state.exists()
    make_private(state)
    async with AsyncExitStack() as stack:
        stack.enter_context(_on_this_host(state))
        if not there:
            stack.callback(_remove_empty, state)
        stack.callback(os.close, hold_lock(state))
        await _clear_interrupted(state)
        _refuse_served(state)
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
            lost = await _fill(config, stage, archive, now, keep_database=keep_database)
        try:
            _publish(stage, state)
        except BaseException:
            _take_back(stage, state)
            if config.meta_dsn is not None and not keep_database:
                await drop_service(config.meta_dsn)
            raise
    return _told(config, name, manifest, lost)


@contextmanager
def _on_this_host(state: Path) -> Iterator[None]:
    """What the host refuses becomes Unavailable."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{error.filename or state}: {error.strerror}") from error


def _stage(archive: _Archive, stage: Path) -> Manifest:
    """Reads all of it, which proves it, and writes the keys into the stage."""
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
    """The control database: in the stage, or the external one."""
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
        return await rows.discard_host_state(DETAIL, now, objects=objects, settings=OF_THE_HOST)


def _publish(stage: Path, state: Path) -> None:
    """Moves the pieces to their places; `instance` makes it a service."""
    for name in CATALOGS:
        # One that the operator has put there already stays.
        with suppress(FileExistsError, FileNotFoundError):
            (state / name).hardlink_to(stage / name)
    for name in (POSTGRES, KEYS, INSTANCE):
        if (stage / name).exists():
            (stage / name).rename(state / name)
            sync_directory(state)


def _take_back(stage: Path, state: Path) -> None:
    (state / INSTANCE).unlink(missing_ok=True)
    for name in CATALOGS:
        with suppress(FileNotFoundError):
            if (state / name).samefile(stage / name):
                (state / name).unlink()
    for name in (KEYS, POSTGRES):
        shutil.rmtree(state / name, ignore_errors=True)


async def _clear_interrupted(state: Path) -> None:
    """Removes what a restore left that was killed. It never had an `instance`."""
    stage = state / STAGE
    if not stage.exists():
        return
    if not (state / INSTANCE).exists():
        await EmbeddedPostgres(stage / POSTGRES).stop()
        _take_back(stage, state)
    shutil.rmtree(stage)


def _refuse_served(state: Path) -> None:
    there = [name for name in _SERVICE if (state / name).exists()]
    if there:
        raise Conflict(
            f"{state} has a service already ({', '.join(there)}): give a --state-dir that was "
            "never served, or move that one away"
        )


def _remove_empty(state: Path) -> None:
    """Undoes the making of the state directory, unless something is in it now."""
    if {path.name for path in state.iterdir()} <= {LOCK}:
        (state / LOCK).unlink(missing_ok=True)
        state.rmdir()


def _told(config: Config, name: str, manifest: Manifest, lost: HostLosses) -> list[str]:
    lines = [
        f"restored {name}, made {manifest.made}, into {config.state_dir}",
        f"  {lost.boxes} boxes, whose disks were lost: each starts anew from its image when it is "
        "used",
    ]
    if lost.boxes:
        lines.append(
            "  boxes that nobody uses are removed --idle-reap after the start, names and deadlines "
            "with them: give a long one, for example --idle-reap 30d, until their owners came"
        )
    if lost.snapshots:
        lines.append(f"  {lost.snapshots} snapshots were on the lost disks and are forgotten")
    if lost.drives:
        lines.append(
            f"  {lost.drives} drives (/wrk) are in no store that is given here and begin empty"
        )
    return [*lines, f"next: boxd serve --state-dir {config.state_dir} with the flags as before"]
