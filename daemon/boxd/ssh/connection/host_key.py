"""The SSH server's host key: one ed25519 key that lives as long as the state directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import asyncssh

from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

FILE = "ssh_host_ed25519"


def load_host_key(keys_dir: Path) -> asyncssh.SSHKey:
    """Return the key in `keys_dir`; create it on the first call.

    Raises Unavailable, with the remedy, if the key cannot be read. The function also rejects a key
    that other users can read, because the key may have been copied.
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
        raise Unavailable(
            f"host key {path} cannot be read: {error}; restore it from a backup"
        ) from error


def _create(path: Path) -> None:
    """Write a new key atomically; if another process creates one first, its key stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    data = asyncssh.generate_private_key("ssh-ed25519", comment="boxd").export_private_key()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
    finally:
        temporary.unlink()
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
