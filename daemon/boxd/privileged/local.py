"""Implements `Host` in this process, which must be root.

Each part pushes its `close` on one stack, so `stop` closes the parts in reverse order. A start that
fails or is cancelled closes its own parts, so it may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from boxd.backends.choose import choose
from boxd.backends.run_directories import RunDirectories
from boxd.backup.creation import BackupJob
from boxd.backup.keyfile import read_key
from boxd.backup.schedule import BackupSchedule
from boxd.backup.target_url import open_target
from boxd.boxes.limits.host import check_floor
from boxd.cancellation import ended
from boxd.clock import SystemClock
from boxd.embedded.files import read_settings, write_private
from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.embedded.postgres import EmbeddedPostgres
from boxd.errors import BadRequest, BoxdError, UnknownImage
from boxd.images import runtime
from boxd.maintenance import catalog_of
from boxd.privileged.interface import INSTANCE, Servers
from boxd.rendering import program
from boxd.sandbox.sandbox import Sandbox
from boxd.sandbox.users import FRONT, OBJECT_SERVER, POSTGRES, RENDERER, ServiceUsers
from boxd.tasks import BackgroundTasks
from boxd.workspaces.credentials import StoreTarget
from boxd.workspaces.journals import MOUNTS, HostJournals
from boxd.workspaces.mount_process import MountOptions, MountPlace, journals_for
from boxd.workspaces.mounts import Mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from boxd.config import Config
    from boxd.privileged.interface import MountRestarted

_log = logging.getLogger(__name__)


class LocalHost:
    """A `Host` whose methods need root. Call `start_servers`, then `start_boxes`, then `stop`.

    `serve` false: boxes are only stopped. `progress` receives a line for each step that may take
    long.
    """

    def __init__(
        self,
        config: Config,
        progress: Callable[[str], None],
        *,
        serve: bool,
    ) -> None:
        self._config = config
        self._progress = progress
        self._serve = serve
        self._mount_restarted: MountRestarted = _ignore
        self._servers: Servers | None = None
        self._started = False
        self._starting = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._tasks = BackgroundTasks()
        self._everything = False
        self.dsn = ""
        self._backups = _backups(config) if serve else None
        self.catalog = catalog_of(config)
        state = config.state_dir
        self.users = ServiceUsers(config.instance, state)
        self.directories = RunDirectories(state / "boxes")
        self.journals = HostJournals(state)
        self.runtime = state / "runtime"

    def on_mount_restarted(self, callback: MountRestarted) -> None:
        """Implements `Host`."""
        self._mount_restarted = callback

    async def start_servers(self) -> Servers:
        """Implements `Host`. A second call returns the same servers."""
        async with self._starting:
            if self._servers is None:
                async with AsyncExitStack() as steps:
                    self._servers = await self._start_servers(steps)
                    self._stack.push_async_callback(steps.pop_all().aclose)
            return self._servers

    async def _start_servers(self, steps: AsyncExitStack) -> Servers:
        config, state = self._config, self._config.state_dir
        if self._serve:  # stopping boxes needs no limits
            check_floor(state, config.min_free)
        self.users.setup()
        dsn = config.meta_dsn
        if dsn is None:
            self._progress("Starting PostgreSQL")
            user = self.users.of(POSTGRES)
            postgres = EmbeddedPostgres(state / "postgres", user=user, on_crash=_log.error)
            dsn = await postgres.start()
            steps.push_async_callback(postgres.stop)
        self.dsn = dsn
        if config.store_file is not None:
            return Servers(dsn, None)
        self._progress("Starting the object server")
        user = self.users.of(OBJECT_SERVER)
        self.issuer = EmbeddedObjectServer(state / "objects", user=user, on_crash=_log.error)
        endpoint = await self.issuer.start()
        steps.push_async_callback(self.issuer.stop)
        return Servers(dsn, StoreTarget(endpoint.url, endpoint.bucket, endpoint.region))

    async def start_boxes(self, existing: Collection[str]) -> None:
        """Implements `Host`. A second call does nothing."""
        async with self._starting:
            if not self._started:
                async with AsyncExitStack() as steps:
                    await self._start_boxes(existing, steps)
                    self._stack.push_async_callback(steps.pop_all().aclose)
                self._started = True

    async def _start_boxes(self, existing: Collection[str], steps: AsyncExitStack) -> None:
        config, state = self._config, self._config.state_dir
        # Stopping boxes needs no disk space for new ones.
        sized = config if self._serve else replace(config, boxes_size=0)
        self.backend = choose(sized, existing, serve=self._serve)
        self._progress("Preparing the host for boxes")
        # Pushed before the setup, because a failed or cancelled setup has changed part of the host.
        steps.push_async_callback(self.backend.close)
        await self.backend.setup()
        cache = config.cache_dir or state / "cache"
        self._options = MountOptions(self.users, cache, config.cache_size, state)
        self.mounts = Mounts(
            state / MOUNTS,
            self._options,
            on_restart=self._on_restart,
        )
        steps.push_async_callback(self._close_mounts)
        await self.mounts.adopt()
        if not self._serve:
            return
        inside = not self.backend.capabilities().attaches_drives
        build = partial(runtime.build, self.runtime, self._progress, drive=inside)
        self.runtime = await asyncio.to_thread(build)
        await self._build_default_image()
        steps.push_async_callback(self._tasks.close)
        self._tasks.start(self._expect_images(), name="look ahead at images")
        if self._backups is not None:
            schedule = BackupSchedule(self._backups(self.dsn), config.backup_every)
            schedule.start()
            steps.push_async_callback(schedule.close)

    async def identity(self) -> str:
        """Implements `Host`."""
        file = self._config.state_dir / INSTANCE
        return file.read_text(encoding="ascii") if file.exists() else ""

    async def set_identity(self, value: str) -> None:
        """Implements `Host`."""
        write_private(self._config.state_dir / INSTANCE, value.encode())

    async def admin_keys(self) -> bytes:
        """Implements `Host`."""
        if self._config.admin_keys is None:
            return b""
        return read_settings(self._config.admin_keys, "--admin-keys")

    async def sanitise(self, document: int, output: int) -> int:
        """Implements `Host`."""
        sandbox = Sandbox(self.users.of(RENDERER), "renderer")
        return await program.run(document, output, sandbox=sandbox)

    def mount_point(self, volume: str) -> Path:
        """Return the mount point of a volume on this host."""
        return MountPlace(self._config.state_dir / MOUNTS / volume).mountpoint

    async def open_journals(self, volume: str, schema: str) -> int:
        """Return a descriptor of the directory of a volume's journals.

        The front's user owns it there, while the mount process keeps it. Raises OSError.
        """
        place = MountPlace(self._config.state_dir / MOUNTS / volume)
        front = self.users.of(FRONT)
        opening = asyncio.ensure_future(
            asyncio.to_thread(journals_for, place, schema, self._options, front)
        )
        try:
            return await ended(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                os.close(opening.result())
            raise

    async def stop(self, *, everything: bool) -> None:
        """Implements `Host`. Idempotent."""
        self._everything = everything
        self._servers, self._started = None, False
        await self._stack.aclose()

    async def _on_restart(self, volume: str, mount_point: Path) -> None:
        del mount_point
        self._mount_restarted(volume)

    async def _close_mounts(self) -> None:
        await self.mounts.close(stop=self._everything)

    async def _build_default_image(self) -> None:
        name = self._config.default_image
        try:
            built = self.catalog.is_built(name)
        except UnknownImage:
            if not self.backend.capabilities().any_image:
                raise
            return  # the backend pulls the image with its first box
        if not built:
            await self.catalog.build(name, self._progress)

    async def _expect_images(self) -> None:
        """Prepare images while the service runs. A new box waits only for its own image."""
        catalog = self.catalog
        try:
            roots = {one.name: catalog.rootfs(one.name) for one in catalog.images() if one.built}
            await self.backend.expect(roots, self._config.default_image)
        except BoxdError as error:
            _log.warning("cannot prepare images: %s", error)


def _ignore(volume: str) -> None:
    del volume


def _backups(config: Config) -> Callable[[str], BackupJob] | None:
    """Return a function from a DSN to the job of scheduled backups, or None without --backup-url.

    Raises BadRequest or Unavailable with the name of the wrong flag or file.
    """
    if config.backup_url is None:
        return None
    if config.backup_key_file is None:
        raise BadRequest(
            "--backup-url needs --backup-key-file; `boxd backup --new-key FILE` creates one"
        )
    key = read_key(config.backup_key_file)
    target = open_target(config.backup_url, config.backup_store_file)
    return partial(
        BackupJob,
        config.state_dir,
        target=target,
        key=key,
        clock=SystemClock(),
        keep=config.backup_keep,
        every=config.backup_every,
    )
