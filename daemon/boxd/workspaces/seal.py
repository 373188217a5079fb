"""Encrypts credentials and secrets at rest with the key file of the state directory.

The cipher is AES-256-GCM. It also authenticates the purpose of a text: the id of a volume, or the
place of a secret. So a sealed text cannot be moved to another row. The database never sees clear
text.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from boxd.embedded.files import write_private
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

KEY_SIZE = 32
NONCE_SIZE = 12
VERSION = b"\x01"
"""First byte of every sealed text: the format."""


class Sealer:
    """Seals and unseals the texts of one installation."""

    def __init__(self, key_file: Path) -> None:
        """Read the key, or create it if the file does not exist.

        Raises Unavailable if the file is readable by others or is not a key.
        """
        self._key_file = key_file
        self._cipher = AESGCM(_load(key_file))

    def seal(self, purpose: str, text: str) -> bytes:
        """Return the encrypted form of `text`, bound to its purpose."""
        nonce = os.urandom(NONCE_SIZE)
        sealed = self._cipher.encrypt(nonce, text.encode("utf-8"), purpose.encode("utf-8"))
        return VERSION + nonce + sealed

    def unseal(self, purpose: str, sealed: bytes) -> str:
        """Return the text that was sealed for the purpose. Raises Unavailable for anything else."""
        nonce, rest = sealed[1 : 1 + NONCE_SIZE], sealed[1 + NONCE_SIZE :]
        if sealed[:1] != VERSION or len(nonce) != NONCE_SIZE:
            raise Unavailable(
                f"the sealed text for {purpose} has an unknown format; use a newer boxd"
            )
        try:
            text = self._cipher.decrypt(nonce, rest, purpose.encode("utf-8"))
        except InvalidTag:
            raise Unavailable(
                f"the sealed text for {purpose} was not sealed with {self._key_file}; "
                "restore that file from a backup"
            ) from None
        return text.decode("utf-8")


def _load(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise Unavailable(f"{path}: readable by others; run: chmod 600 {path}")
        key = file.read(KEY_SIZE + 1)
    if len(key) != KEY_SIZE:
        raise Unavailable(f"{path}: not a key of {KEY_SIZE} bytes; restore it from a backup")
    return key


def _create(path: Path) -> bytes:
    key = AESGCM.generate_key(bit_length=8 * KEY_SIZE)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, key)
    return key
