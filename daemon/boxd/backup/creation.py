"""Makes one backup: one moment of the control database and the keys of the state directory."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from boxd.backup import status
from boxd.backup.archive import CATALOGS, CONTENT, FILE, ArchiveWriter, Manifest, Row, StateFile
from boxd.backup.target import archive_name, later, superfluous
from boxd.errors import BoxdError, Unavailable
from boxd.store.export import open_snapshot

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path
    from typing import BinaryIO

    from boxd.backup.keyfile import Key
    from boxd.backup.target import Target
    from boxd.clock import Clock

INSTANCE = "instance"
KEYS = "keys"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Made:
    """What a backup holds: `rows` by table."""

    name: str
    size: int
    files: int
    rows: dict[str, int]

    def told(self) -> str:
        """One line for people."""
        rows = ", ".join(f"{table} {count}" for table, count in self.rows.items())
        return f"{self.name}, {self.size} bytes: {self.files} files, rows of {rows or 'nothing'}"


@dataclass(frozen=True, slots=True)
class BackupJob:
    """Backups of one service to one target. `keep`: so many archives stay; None: all.

    `every`: how often the service makes one; None: only when somebody asks.
    """

    state: Path
    dsn: str
    target: Target
    key: Key
    clock: Clock
    keep: int | None = None
    every: timedelta | None = None

    async def run(self) -> Made:
        """Makes one, then removes what is superfluous. Success and failure are noted.

        Raises Unavailable and what the target raises; then there is no new archive.
        """
        known = status.load(self.state).get(self.target.url, status.Status())
        now = self.clock.now()
        try:
            made = await self._make()
        except (BoxdError, OSError) as error:
            failed = replace(known, failed=now, why=str(error), every=self.every)
            self._note(failed)
            if isinstance(error, OSError):
                raise Unavailable(f"the backup failed on this host: {error.strerror}") from error
            raise
        self._note(status.Status(succeeded=now, archive=made.name, every=self.every))
        await self._retain(made)
        return made

    async def _make(self) -> Made:
        # Spooled first, encrypted: a slow target does not hold the database's moment open.
        with tempfile.TemporaryFile(dir=self.state) as spool:
            async with open_snapshot(self.dsn) as now:
                manifest = Manifest(CONTENT, now.schema, now.instance, self.clock.now().isoformat())
                writer = ArchiveWriter(spool, self.key, manifest)
                files = await asyncio.to_thread(_state_files, self.state)
                for file in files:
                    writer.add_file(file)
                rows: Counter[str] = Counter()
                async for table, row in now.rows():
                    writer.add_row(Row(table, row))
                    rows[table] += 1
            writer.finish()
            name = archive_name(manifest.instance, self.clock.now())
            size = _rewound(spool)
            await self.target.put(name, spool)
            return Made(name, size, len(files), dict(rows))

    async def _retain(self, made: Made) -> None:
        """What cannot be removed now is removed after the next backup."""
        if self.keep is None:
            return
        try:
            names = await self.target.names()
            ahead = later(names, made.name)
            if ahead:
                _log.warning(
                    "%d backups have a time to come, as %s: a clock was ahead when they were made, "
                    "and they count as the newest; remove them",
                    *(len(ahead), ahead[-1]),
                )
            for name in superfluous(names, made.name, self.keep):
                await self.target.remove(name)
        except BoxdError as error:
            _log.warning("old backups not removed: %s", error)

    def _note(self, found: status.Status) -> None:
        try:
            status.note(self.state, self.target.url, found)
        except OSError as error:
            _log.warning("outcome of the backup not noted: %s", error.strerror)


def _rewound(spool: BinaryIO) -> int:
    """Its length; it is read from the beginning then."""
    spool.flush()
    spool.seek(0)
    return os.fstat(spool.fileno()).st_size


def _state_files(state: Path) -> list[StateFile]:
    """Instance, keys, catalogs. Raises Unavailable when the directory has no service, OSError."""
    if not (state / INSTANCE).is_file():
        raise Unavailable(f"{state} has no service yet: run `boxd serve` first")
    catalogs = (state / name for name in CATALOGS)
    paths = [state / INSTANCE, *sorted((state / KEYS).iterdir()), *catalogs]
    names = ((str(path.relative_to(state)), path) for path in paths if path.is_file())
    return [StateFile(name, path.read_bytes()) for name, path in names if FILE.fullmatch(name)]
