"""Targets of backups: a directory, or a bucket with a prefix (`boxd.backup.s3`).

An archive appears under its name only when it is complete. Names sort by time:
`boxd-<instance>-<UTC time>.backup`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from typing import TYPE_CHECKING, BinaryIO, Protocol

from boxd.embedded.files import sync_directory
from boxd.errors import BadRequest, Conflict, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from pathlib import Path

NAME = re.compile(r"boxd-([0-9a-f]{8})-[0-9]{8}T[0-9]{12}Z\.backup")
"""Names of archives. Group 1 is the start of the id of the installation."""
SCHEME = "s3://"
"""Start of the URL of a bucket."""
SUFFIX = ".backup"
UNFINISHED = ".part"
ABANDONED_S = 86400.0
"""Age in seconds after which an unfinished archive counts as abandoned."""


class Target(Protocol):
    """Stores archives. Every method raises Unavailable with the place and its error."""

    @property
    def url(self) -> str:
        """The name for users. Contains no secret."""
        ...

    async def put(self, name: str, file: BinaryIO) -> None:
        """Store `file` durably as `name`. After a failure the name does not exist."""
        ...

    async def names(self) -> list[str]:
        """List all archives, oldest first."""
        ...

    async def get(self, name: str, file: BinaryIO) -> None:
        """Write an archive into `file`. Raises NotFound if it does not exist."""
        ...

    async def remove(self, name: str) -> None:
        """Remove an archive, if it exists."""
        ...


class DirectoryTarget:
    """An existing directory.

    The target never creates it: if a mount is missing, the archives must not go to the host's own
    disk.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()

    @property
    def url(self) -> str:
        """The path of the directory."""
        return str(self._directory)

    async def put(self, name: str, file: BinaryIO) -> None:
        """Store an archive with mode 0600."""
        await asyncio.to_thread(self._put, name, file)

    async def names(self) -> list[str]:
        """List the archives, oldest first."""
        try:
            return archive_names(os.listdir(self._directory))
        except OSError as error:
            raise self._failed(error) from None

    async def get(self, name: str, file: BinaryIO) -> None:
        """Write an archive into `file`. Raises NotFound if it does not exist."""
        await asyncio.to_thread(self._get, name, file)

    async def remove(self, name: str) -> None:
        """Remove an archive, if it exists."""
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error) from None

    def _put(self, name: str, file: BinaryIO) -> None:
        unfinished = self._directory / f".{name}{UNFINISHED}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._remove_abandoned()
            try:
                with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as copy:
                    shutil.copyfileobj(file, copy)
                    copy.flush()
                    os.fsync(copy.fileno())
                unfinished.replace(self._directory / name)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            sync_directory(self._directory)
        except OSError as error:
            raise self._failed(error) from None

    def _remove_abandoned(self) -> None:
        for path in self._directory.glob(f".boxd-*{SUFFIX}{UNFINISHED}"):
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                path.unlink(missing_ok=True)

    def _get(self, name: str, file: BinaryIO) -> None:
        path = self._directory / name
        try:
            with path.open("rb") as archive:
                shutil.copyfileobj(archive, file)
        except FileNotFoundError:
            raise NotFound(f"there is no backup {path}") from None
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> Unavailable:
        if isinstance(error, FileNotFoundError):
            text = "there is no such directory; create it, or mount its file system"
        else:
            text = error.strerror or type(error).__name__
        return Unavailable(f"backups in {self._directory}: {text}")


def archive_name(instance: str, when: datetime) -> str:
    """Return the name of a new archive."""
    return f"boxd-{instance[:8]}-{when:%Y%m%dT%H%M%S%fZ}{SUFFIX}"


def archive_names(names: Iterable[str]) -> list[str]:
    """Return the names of archives among `names`, oldest first."""
    return sorted((name for name in names if NAME.fullmatch(name)), key=_date)


def newest(names: list[str], place: str) -> str:
    """Return the archive to restore if the user names none.

    Raises NotFound without archives, and Conflict if they belong to several services.
    """
    if not names:
        raise NotFound(f"there is no backup in {place}")
    instances = sorted({name.split("-")[1] for name in names})
    if len(instances) > 1:
        raise Conflict(
            f"{place} contains backups of several services ({', '.join(instances)}): "
            f"give the one to restore, for example --from {place}/{names[-1]}"
        )
    return names[-1]


def expired(names: list[str], newest_name: str, keep: int) -> list[str]:
    """Return the archives to remove: all of this service except the newest `keep`.

    The archive `newest_name`, which was just created, always stays, regardless of its date.
    """
    own = _same_service(names, newest_name)
    return [name for name in own[: max(0, len(own) - keep)] if name != newest_name]


def dated_after(names: list[str], newest_name: str) -> list[str]:
    """Return the archives of this service with a later date than the one just created."""
    return [name for name in _same_service(names, newest_name) if _date(name) > _date(newest_name)]


def _same_service(names: list[str], name: str) -> list[str]:
    instance = name.split("-")[1]
    return [other for other in names if other.startswith(f"boxd-{instance}-")]


def split_source(source: str) -> tuple[str, str | None]:
    """Split `source` into a place and the name of an archive; None: the newest archive."""
    if source.endswith(SUFFIX):
        place, slash, name = source.rpartition("/")
        if not NAME.fullmatch(name):
            raise BadRequest(
                f"{source} is not named like a backup of boxd (boxd-ID-TIME{SUFFIX}): "
                "give its original name"
            )
        return place if slash else ".", name
    return source, None


def _date(name: str) -> str:
    return name.split("-", 2)[2]
