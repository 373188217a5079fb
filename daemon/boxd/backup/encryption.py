"""Encrypted streams: what is written as plain bytes comes out sealed, and only whole and unchanged.

::

    "boxd-backup" | format (1 byte) | salt (32) | proof of the key (16) | chunk | chunk | ...

A chunk is up to 64 KiB, encrypted with AES-256-GCM under a key that HKDF-SHA256 makes of the key
file and the salt, so that no two archives share one. Its nonce is its number and whether it is the
last one: a chunk that was changed, moved, repeated or left out does not open, and a file that was
cut off has no last chunk.
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
"""Bytes of a chunk before it is encrypted; all but the last one are full."""
TAG = 16
_LAST, _MORE = b"\x01", b"\x00"


class SealingWriter:
    """Encrypts what is written to it into `file`. Without `finish` the stream stays cut off."""

    def __init__(self, file: BinaryIO, key: Key) -> None:
        salt = os.urandom(SALT)
        head = MAGIC + bytes([FORMAT])
        self._cipher, proof = _keys(key, head, salt)
        self._file = file
        self._rest = bytearray()
        self._number = 0
        file.write(head + salt + proof)

    def write(self, data: bytes) -> None:
        """Takes all of it. Raises OSError."""
        self._rest += data
        # The last chunk is never empty unless the stream is: so a full one waits for more.
        while len(self._rest) > CHUNK:
            self._seal(self._rest[:CHUNK], _MORE)
            del self._rest[:CHUNK]

    def finish(self) -> None:
        """Writes the last chunk. Call it once, after everything was written. Raises OSError."""
        self._seal(self._rest, _LAST)
        self._rest.clear()

    def _seal(self, data: bytearray, last: bytes) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, last), bytes(data), None))
        self._number += 1


class OpeningReader(io.RawIOBase):
    """Decrypts what `SealingWriter` wrote. Every read raises Unavailable at the first byte that is
    not what was written, so nothing unproven ever comes out. `name` is for error texts."""

    def __init__(self, file: BinaryIO, key: Key, name: str) -> None:
        """Reads the head. Unavailable: no backup, of a newer release, or of another key."""
        self._file = file
        self._name = name
        self._number = 0
        self._plain = b""
        head = file.read(len(MAGIC) + 1)
        if head[:-1] != MAGIC:
            raise Unavailable(f"{name} is not a backup of boxd")
        if head[-1] != FORMAT:
            raise Unavailable(
                f"{name} has format {head[-1]}, this boxd knows {FORMAT}: use a newer boxd"
            )
        salt, proof = file.read(SALT), file.read(PROOF)
        if len(proof) < PROOF:
            raise Unavailable(f"{name} is cut off within its head: use another backup")
        self._cipher, expected = _keys(key, head, salt)
        if not same(proof, expected):
            raise Unavailable(
                f"{name} was not encrypted with the key in {key.file}, or its head was changed: "
                "give the --key-file that it was made with"
            )
        self._next: bytes | None = file.read(CHUNK + TAG)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Some bytes, 0 at the proven end. Raises Unavailable, OSError."""
        if not self._plain and self._next is not None:
            self._plain = self._open(self._next)
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._plain))
        view[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def _open(self, sealed: bytes) -> bytes:
        """The plain bytes of the next chunk, and reads ahead."""
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
        if last == _LAST and self._goes_on(sealed):
            what = f"is cut off at byte {start + len(sealed)}"
        elif last == _LAST:
            what = f"was cut off, or changed behind byte {start}"
        else:
            what = f"was changed between bytes {start} and {start + len(sealed)}"
        return Unavailable(f"{self._name} {what}: use another backup; nothing was restored from it")

    def _goes_on(self, sealed: bytes) -> bool:
        """Whether a chunk that stands at the end was written as one that others follow."""
        try:
            self._cipher.decrypt(_nonce(self._number, _MORE), sealed, None)
        except InvalidTag:
            return False
        return True


def _keys(key: Key, head: bytes, salt: bytes) -> tuple[AESGCM, bytes]:
    """The cipher of one archive, and what proves that a key is the right one."""
    derived = HKDF(SHA256(), length=32 + PROOF, salt=salt, info=head).derive(key.reveal())
    return AESGCM(derived[:32]), derived[32:]


def _nonce(number: int, last: bytes) -> bytes:
    return number.to_bytes(11, "big") + last
