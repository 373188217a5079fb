"""Encrypted streams. A reader returns only bytes that are proven complete and unchanged.

::

    "boxd-backup" | format (1 byte) | salt (32) | proof of the key (16) | chunk | chunk | ...

A chunk holds up to 64 KiB, encrypted with AES-256-GCM. HKDF-SHA256 derives the key from the key
file and the salt, so every archive has its own. The nonce contains the number of the chunk and
whether it is the last one. So a changed, moved, repeated or missing chunk does not decrypt, and a
truncated file has no last chunk.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from boxd.errors import Unavailable
from boxd.secret import same

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from boxd.backup.keyfile import Key

MAGIC = b"boxd-backup"
FORMAT = 1
SALT = 32
PROOF = 16
CHUNK = 64 * 1024
"""Plain bytes of a chunk. Every chunk except the last one is full."""
TAG = 16
_LAST, _MORE = b"\x01", b"\x00"


class EncryptingWriter:
    """Encrypts a stream into `file`. Without `finish` the stream counts as truncated."""

    def __init__(self, file: BinaryIO, key: Key) -> None:
        salt = os.urandom(SALT)
        head = MAGIC + bytes([FORMAT])
        self._cipher, proof = _keys(key, head, salt)
        self._file = file
        self._rest = bytearray()
        self._number = 0
        file.write(head + salt + proof)

    def write(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError."""
        self._rest += data
        # A full chunk waits for more data, because only an empty stream has an empty last chunk.
        while len(self._rest) > CHUNK:
            self._seal(self._rest[:CHUNK], _MORE)
            del self._rest[:CHUNK]

    def finish(self) -> None:
        """Write the last chunk. Call it once, after all data is written. Raises OSError."""
        self._seal(self._rest, _LAST)
        self._rest.clear()

    def _seal(self, data: bytearray, last: bytes) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, last), bytes(data), None))
        self._number += 1


class DecryptingReader(io.RawIOBase):
    """Decrypts a stream of `EncryptingWriter`. `name` appears in errors.

    A read raises Unavailable at the first chunk that was changed. So it never returns bytes that
    are not verified.
    """

    def __init__(self, file: BinaryIO, key: Key, name: str) -> None:
        """Read the header.

        Raises Unavailable if the file is not a backup, comes from a newer release, or needs another
        key.
        """
        self._file = file
        self._name = name
        self._number = 0
        self._plain = b""
        head = file.read(len(MAGIC) + 1)
        if head[:-1] != MAGIC:
            raise Unavailable(f"{name} is not a backup of boxd")
        if head[-1] != FORMAT:
            raise Unavailable(
                f"{name} has format {head[-1]}, but this boxd reads only {FORMAT}: use a newer boxd"
            )
        salt, proof = file.read(SALT), file.read(PROOF)
        if len(proof) < PROOF:
            raise Unavailable(f"{name} is cut off within its header: use another backup")
        self._cipher, expected = _keys(key, head, salt)
        if not same(proof, expected):
            raise Unavailable(
                f"{name} was not encrypted with the key in {key.file}, or its header was changed: "
                "give the --key-file that the archive was made with"
            )
        self._next: bytes | None = file.read(CHUNK + TAG)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read some bytes; return 0 at the verified end. Raises Unavailable, OSError."""
        if not self._plain and self._next is not None:
            self._plain = self._open(self._next)
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._plain))
        view[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def _open(self, sealed: bytes) -> bytes:
        """Decrypt the next chunk, and read the one after it."""
        following = self._file.read(CHUNK + TAG) if len(sealed) == CHUNK + TAG else b""
        last = _MORE if following else _LAST
        try:
            plain = self._cipher.decrypt(_nonce(self._number, last), sealed, None)
        except InvalidTag:
            raise self._damage(sealed, last) from None
        self._number += 1
        self._next = following or None
        return plain

    def _damage(self, sealed: bytes, last: bytes) -> Unavailable:
        start = len(MAGIC) + 1 + SALT + PROOF + self._number * (CHUNK + TAG)
        if last == _LAST and self._has_successor(sealed):
            damage = f"is cut off at byte {start + len(sealed)}"
        elif last == _LAST:
            damage = f"was cut off, or changed after byte {start}"
        else:
            damage = f"was changed between bytes {start} and {start + len(sealed)}"
        return Unavailable(
            f"{self._name} {damage}: use another backup; nothing was restored from it"
        )

    def _has_successor(self, sealed: bytes) -> bool:
        """Return whether the chunk at the end of the file was written with others after it."""
        try:
            self._cipher.decrypt(_nonce(self._number, _MORE), sealed, None)
        except InvalidTag:
            return False
        return True


def _keys(key: Key, head: bytes, salt: bytes) -> tuple[AESGCM, bytes]:
    """Return the cipher of an archive, and the value that proves that a key is the right one."""
    derived = HKDF(SHA256(), length=32 + PROOF, salt=salt, info=head).derive(key.reveal())
    return AESGCM(derived[:32]), derived[32:]


def _nonce(number: int, last: bytes) -> bytes:
    return number.to_bytes(11, "big") + last
