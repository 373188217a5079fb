"""Writes small files of the state directory. A crash leaves either the old or the new version."""

from __future__ import annotations

import os
import secrets
import stat
from typing import TYPE_CHECKING

from boxd.errors import BadRequest

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS_MAX = 1024 * 1024
"""Maximum size of a file of settings, in bytes."""


def sync_directory(directory: Path) -> None:
    """Make created, renamed and removed names in `directory` durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes, *, owner: tuple[int, int] | None = None) -> None:
    """Replace `path` atomically and durably with a file of mode 0600. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def read_untrusted(path: Path, most: int) -> bytes:
    """Return the content of a file in a directory of a sandboxed process, at most `most` bytes.

    The process may put anything there. Does not wait, and follows no link at the end of the path.
    Raises FileNotFoundError, OSError, and ValueError if it is no such file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is not a regular file")
        content = os.read(descriptor, most + 1)
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise ValueError(f"{path} is larger than {most} bytes")
    return content


def read_settings(path: Path, flag: str) -> bytes:
    """Return the content of the operator's file that a flag names.

    The owner of the file must be root or the user of this process. Raises BadRequest if the file
    cannot be used, or if other users can write to it.
    """
    try:
        # With O_NONBLOCK, a named pipe at this path does not block the service.
        with open(
            path, "rb", opener=lambda name, mode: os.open(name, mode | os.O_NONBLOCK)
        ) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadRequest(f"{flag}: {path} is not a regular file")
            if stat.S_IMODE(status.st_mode) & 0o022:
                raise BadRequest(f"{flag}: other users can write to {path}; run: chmod go-w {path}")
            if status.st_uid not in (0, os.geteuid()):
                raise BadRequest(f"{flag}: {path} belongs to another user; run: chown root {path}")
            text = file.read(SETTINGS_MAX + 1)
    except OSError as error:
        raise BadRequest(f"{flag}: {path}: {error.strerror}") from None
    if len(text) > SETTINGS_MAX:
        raise BadRequest(f"{flag}: {path} is longer than {SETTINGS_MAX} bytes")
    return text
