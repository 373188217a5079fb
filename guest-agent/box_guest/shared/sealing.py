"""Encrypts a text so that only one process in a box can read it.

The reading process creates a key pair (X25519) and publishes the public half. The sender seals the
text to that key with a key pair of its own, and then discards its pair. From both, HKDF-SHA256
derives the key of one message (ChaCha20-Poly1305). The message is bound to its purpose and to the
id of the box.

This protects a text only from eavesdroppers. An intermediary could replace the public key with its
own. Only root in the box is in that position, and the sealed text belongs to that box anyway.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

HANDOVER = "box-guest handover 1"
"""Purpose of the text that a command receives when it starts."""
_PUBLIC = 32
_NONCE = bytes(12)
"""The nonce is the same for every message, because no key seals two messages."""


class SealBroken(ValueError):
    """The text was not sealed for this key, purpose and box, was changed, or is a second one.

    The error text does not say which.
    """


class Opener:
    """A key pair that opens one text."""

    def __init__(self) -> None:
        self._private: X25519PrivateKey | None = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()
        """The public key to give to the sender, 32 bytes."""

    def open(self, sealed: bytes, *, purpose: str, box_id: str) -> bytes:
        """Return the sealed text. Raises SealBroken.

        May be called only once, even if that call fails.
        """
        private, self._private = self._private, None
        if private is None:
            raise SealBroken("this key has already opened a text")
        sender, text = sealed[:_PUBLIC], sealed[_PUBLIC:]
        bound = _bound(purpose, box_id)
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(sender))
            return _cipher(shared, sender, self.public, bound).decrypt(_NONCE, text, bound)
        except (InvalidTag, ValueError):
            raise SealBroken("the text was not sealed for this key, purpose and box") from None


def seal(text: bytes, public: bytes, *, purpose: str, box_id: str) -> bytes:
    """Seal a text for the process with this public key. Raises ValueError if the key is invalid."""
    own = X25519PrivateKey.generate()
    own_public = own.public_key().public_bytes_raw()
    bound = _bound(purpose, box_id)
    shared = own.exchange(X25519PublicKey.from_public_bytes(public))
    return own_public + _cipher(shared, own_public, public, bound).encrypt(_NONCE, text, bound)


def _cipher(shared: bytes, sender: bytes, reader: bytes, bound: bytes) -> ChaCha20Poly1305:
    key = HKDF(SHA256(), 32, salt=sender + reader, info=bound).derive(shared)
    return ChaCha20Poly1305(key)


def _bound(purpose: str, box_id: str) -> bytes:
    return purpose.encode("utf-8") + b"\0" + box_id.encode("utf-8")
