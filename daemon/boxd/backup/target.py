"""Where archives are kept: a directory, or a bucket with a prefix (`boxd.backup.s3`).

An archive appears there under its name when it is whole, never before. Names sort by time:
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
"""Names of archives; group 1 tells the installation."""
SCHEME = "s3://"
"""Of the URLs of buckets."""
SUFFIX = ".backup"
UNFINISHED = ".part"
ABANDONED_S = 86400.0
"""Age at which an unfinished archive is not being written any more."""


class Target(Protocol):
    """Keeps archives. Every method raises Unavailable naming the place and what it said."""

    @property
    def url(self) -> str:
        """How people name it; holds no secret."""
        ...

    async def put(self, name: str, file: BinaryIO) -> None:
        """Keeps all of `file` as `name`, durably; on failure there is no such name."""
        ...

    async def names(self) -> list[str]:
        """Names of all archives, oldest first."""
        ...

    async def get(self, name: str, file: BinaryIO) -> None:
        """Writes an archive into `file`. NotFound when there is none of that name."""
        ...

    async def remove(self, name: str) -> None:
        """Removes an archive; no error if it is gone."""
        ...


class DirectoryTarget:
    """A directory, which must be there: what is not mounted is not made on the host's own disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()

    @property
    def url(self) -> str:
        """Its path."""
        return str(self._directory)

    async def put(self, name: str, file: BinaryIO) -> None:
        """See Target. Mode 0600."""
        await asyncio.to_thread(self._put, name, file)

    async def names(self) -> list[str]:
        """See Target."""
        try:
            return archive_names(os.listdir(self._directory))
        except OSError as error:
            raise self._failed(error) from None

    async def get(self, name: str, file: BinaryIO) -> None:
        """See Target."""
        await asyncio.to_thread(self._get, name, file)

    async def remove(self, name: str) -> None:
        """See Target."""
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
            with path.open("rb") as kept:
                shutil.copyfileobj(kept, file)
        except FileNotFoundError:
            raise NotFound(f"there is no backup {path}") from None
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> Unavailable:
        if isinstance(error, FileNotFoundError):
            text = "there is no such directory; make it, or mount what it is on"
        else:
            text = error.strerror or type(error).__name__
        return Unavailable(f"backups in {self._directory}: {text}")


def archive_name(instance: str, when: datetime) -> str:
    """The name of a new archive."""
    return f"boxd-{instance[:8]}-{when:%Y%m%dT%H%M%S%fZ}{SUFFIX}"


def archive_names(names: Iterable[str]) -> list[str]:
    """What of some names are archives, oldest first."""
    return sorted((name for name in names if NAME.fullmatch(name)), key=_age)


def newest(names: list[str], where: str) -> str:
    """The archive to restore when none was named: NotFound, and Conflict between services."""
    if not names:
        raise NotFound(f"there is no backup in {where}")
    instances = sorted({name.split("-")[1] for name in names})
    if len(instances) > 1:
        raise Conflict(
            f"{where} holds backups of several services ({', '.join(instances)}): "
            f"give the one to restore, for example --from {where}/{names[-1]}"
        )
    return names[-1]


def superfluous(names: list[str], made: str, keep: int) -> list[str]:
    """What retention removes: of this service's archives all but the newest `keep`.

    Never the one that was `made` just now, whatever times the others have.
    """
    own = _of_the_service(names, made)
    return [name for name in own[: max(0, len(own) - keep)] if name != made]


def later(names: list[str], made: str) -> list[str]:
    """Archives of this service with a time after that of the one that was `made` just now."""
    return [name for name in _of_the_service(names, made) if _age(name) > _age(made)]


def _of_the_service(names: list[str], made: str) -> list[str]:
    instance = made.split("-")[1]
    return [name for name in names if name.startswith(f"boxd-{instance}-")]


def split_source(source: str) -> tuple[str, str | None]:
    """A place, and the archive in it that is meant; None: the newest."""
    if source.endswith(SUFFIX):
        place, slash, name = source.rpartition("/")
        if not NAME.fullmatch(name):
            raise BadRequest(f"{source} is not named as backups of boxd are")
        return place if slash else ".", name
    return source, None


def _age(name: str) -> str:
    return name.split("-", 2)[2]
