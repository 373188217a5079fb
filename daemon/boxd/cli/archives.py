"""Implementation of `boxd backup` and `boxd restore`."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from boxd.backup import restoration
from boxd.backup.creation import BackupJob
from boxd.backup.keyfile import make_key, read_key
from boxd.backup.target_url import open_target
from boxd.clock import SystemClock
from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.process import processes_in
from boxd.embedded.statedir import hold_lock, lock_holder
from boxd.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from boxd.config import Config


def backup(config: Config, to: str | None, keep: int | None, new_key: Path | None) -> int:
    """Make an archive, or create a key file if `new_key` is given. Return the exit status.

    `keep` archives remain in `to`; None: all. Raises BoxdError.
    """
    if new_key is not None:
        make_key(new_key)
        print(f"wrote {new_key}: store it apart from the archives, which are useless without it")
        return 0
    if to is None:
        raise BadRequest("give --to DIR or --to s3://BUCKET/PREFIX")
    print(asyncio.run(_backup(config, to, keep)))
    return 0


async def restore(
    config: Config,
    source: str,
    progress: Callable[[str], None],
    *,
    keep_database: bool,
) -> list[str]:
    """Restore a state directory; return the lines to print. Raises BoxdError."""
    now = SystemClock().now()
    return await restoration.restore(
        config, source, _key_file(config), now, progress, keep_database=keep_database
    )


async def _backup(config: Config, to: str, keep: int | None) -> str:
    key = read_key(_key_file(config))
    target = open_target(to, config.backup_store_file)
    async with _database(config) as dsn:
        job = BackupJob(config.state_dir, dsn, target, key, SystemClock(), keep)
        backup = await job.run()
    return f"made {backup.summary()}"


@asynccontextmanager
async def _database(config: Config) -> AsyncIterator[str]:
    """Yield the DSN of the control database.

    If the service is stopped, its embedded PostgreSQL runs for the duration of the body. Raises
    Unavailable if the state directory has no service.
    """
    if config.meta_dsn is not None:
        yield config.meta_dsn
        return
    postgres = EmbeddedPostgres(config.state_dir / restoration.POSTGRES)
    if not postgres.data.exists():
        raise Unavailable(f"{config.state_dir} has no service yet: run `boxd serve` first")
    if lock_holder(config.state_dir) is not None:
        yield postgres.dsn()
        return
    lock = hold_lock(config.state_dir)
    try:
        left_running = processes_in(postgres.data, "postgres")
        try:
            yield await postgres.start()
        finally:
            # Mounts of a killed daemon still use the PostgreSQL server of that daemon.
            await (postgres.detach() if left_running else postgres.stop())
    finally:
        os.close(lock)


def _key_file(config: Config) -> Path:
    if config.backup_key_file is None:
        raise BadRequest("give --key-file FILE; `boxd backup --new-key FILE` creates one")
    return config.backup_key_file
