"""The host key of the front door: one ed25519 key that outlives everything but the state."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import asyncssh

from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

FILE = "ssh_host_ed25519"


def load_host_key(keys_dir: Path) -> asyncssh.SSHKey:
    """The key in `keys_dir`, made on the first call. Raises Unavailable, naming a remedy.

    A key that others can read is refused, because it may have been copied.
    """
    path = keys_dir / FILE
    if not path.exists():
        _create(path)
    mode = path.stat().st_mode
    if mode & 0o077:
        raise Unavailable(
            f"host key {path} is readable by others (mode {mode & 0o777:04o});"
            f" run: chmod 600 {path}"
        )
    try:
        return asyncssh.import_private_key(path.read_bytes())
    except asyncssh.KeyImportError as error:
        raise Unavailable(f"host key {path} cannot be read: {error}; restore it") from error


def _create(path: Path) -> None:
    """Writes a new key so that a crash leaves a whole key or none; a concurrent one wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    data = asyncssh.generate_private_key("ssh-ed25519", comment="boxd").export_private_key()
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, path)
        except FileExistsError:
            return
    finally:
        new.unlink()
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
