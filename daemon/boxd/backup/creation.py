"""Creates a backup: a snapshot of the control database, and the keys of the state directory."""

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
from boxd.backup.target import archive_name, dated_after, expired
from boxd.embedded.files import read_untrusted
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
KEYS_MAX = 64
"""Maximum number of files in the directory of keys."""
KEY_MAX = 1024 * 1024
"""Maximum size of a file in the directory of keys, in bytes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backup:
    """A new archive: its name, its size in bytes, and the number of files and of rows by table."""

    name: str
    size: int
    files: int
    rows: dict[str, int]

    def summary(self) -> str:
        """Return one line for users."""
        rows = ", ".join(f"{table} {count}" for table, count in self.rows.items())
        return f"{self.name}, {self.size} bytes: {self.files} files; rows: {rows or 'none'}"


@dataclass(frozen=True, slots=True)
class BackupJob:
    """Creates backups of one service in one target.

    `keep` is the number of archives to keep (None: all). `every` is the period of scheduled
    backups (None: only on request).
    """

    state: Path
    dsn: str
    target: Target
    key: Key
    clock: Clock
    keep: int | None = None
    every: timedelta | None = None

    async def run(self) -> Backup:
        """Create a backup, then remove archives beyond `keep`. Record success or failure.

        Raises Unavailable and the errors of the target; then there is no new archive.
        """
        previous = status.load(self.state).get(self.target.url, status.Status())
        now = self.clock.now()
        try:
            backup = await self._create()
        except (BoxdError, OSError) as error:
            self._record(replace(previous, failed=now, why=str(error), every=self.every))
            if isinstance(error, OSError):
                raise Unavailable(f"the backup failed on this host: {error.strerror}") from error
            raise
        self._record(status.Status(succeeded=now, archive=backup.name, every=self.every))
        await self._remove_expired(backup)
        return backup

    async def _create(self) -> Backup:
        # The encrypted archive goes to a local file first. So a slow target does not keep the
        # snapshot of the database open.
        with tempfile.TemporaryFile(dir=self.state) as spool:
            async with open_snapshot(self.dsn) as snapshot:
                made_at = self.clock.now().isoformat()
                manifest = Manifest(CONTENT, snapshot.schema, snapshot.instance, made_at)
                writer = ArchiveWriter(spool, self.key, manifest)
                files = await asyncio.to_thread(_state_files, self.state)
                for file in files:
                    writer.add_file(file)
                rows: Counter[str] = Counter()
                async for table, row in snapshot.rows():
                    writer.add_row(Row(table, row))
                    rows[table] += 1
            writer.finish()
            name = archive_name(manifest.instance, self.clock.now())
            size = _rewind(spool)
            await self.target.put(name, spool)
            return Backup(name, size, len(files), dict(rows))

    async def _remove_expired(self, backup: Backup) -> None:
        """Remove archives beyond `keep`. After a failure the next backup tries again."""
        if self.keep is None:
            return
        try:
            names = await self.target.names()
            future = dated_after(names, backup.name)
            if future:
                _log.warning(
                    "%d backups are dated in the future, for example %s: the clock was ahead when "
                    "they were made, and they count as the newest; remove them",
                    len(future),
                    future[-1],
                )
            for name in expired(names, backup.name, self.keep):
                await self.target.remove(name)
        except BoxdError as error:
            _log.warning("old backups not removed: %s", error)

    def _record(self, outcome: status.Status) -> None:
        try:
            status.save(self.state, self.target.url, outcome)
        except OSError as error:
            _log.warning("outcome of the backup not recorded: %s", error.strerror)


def _rewind(spool: BinaryIO) -> int:
    """Set the position to the beginning; return the length in bytes."""
    spool.flush()
    spool.seek(0)
    return os.fstat(spool.fileno()).st_size


def _state_files(state: Path) -> list[StateFile]:
    """Return instance, keys and catalogs. Raises OSError, or Unavailable without a service."""
    if not (state / INSTANCE).is_file():
        raise Unavailable(f"{state} has no service yet: run `boxd serve` first")
    catalogs = (state / name for name in CATALOGS)
    files = [
        StateFile(path.name, path.read_bytes())
        for path in (state / INSTANCE, *catalogs)
        if path.is_file()
    ]
    # The front owns the keys, and may be hostile: links are left out.
    keys = [path for path in sorted((state / KEYS).iterdir()) if not path.is_symlink()]
    if len(keys) > KEYS_MAX:
        raise Unavailable(f"{state / KEYS} has more than {KEYS_MAX} files; remove foreign ones")
    names = ((f"{KEYS}/{path.name}", path) for path in keys if path.is_file())
    return files + [StateFile(name, _key(path)) for name, path in names if FILE.fullmatch(name)]


def _key(path: Path) -> bytes:
    try:
        return read_untrusted(path, KEY_MAX)
    except ValueError as error:
        raise Unavailable(f"the backup cannot have a key: {error}") from None
