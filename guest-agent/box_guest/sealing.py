"""Texts that one process in a box alone can read, whoever carries them.

The process makes a key pair (X25519) and shows the public half; the text is sealed to it with a key
pair of the sender's own, which is gone afterwards: HKDF-SHA256 makes of both the key of one message
(ChaCha20-Poly1305). What the text is for and the id of the box are bound to it.

It keeps a text from those who listen. Whoever carries the public key could show another one: the
root of a box can, and what is sealed is the box's own anyway.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

HANDOVER = "box-guest handover 1"
"""The purpose of what a command is handed when it starts."""
_PUBLIC = 32
_NONCE = bytes(12)
"""Of every message: no key seals two."""


class SealBroken(ValueError):
    """It was not sealed for this key, purpose and box, or not as it is now; or it is a second one.

    The text tells no more than that.
    """


class Opener:
    """A key pair for one text."""

    def __init__(self) -> None:
        self._private: X25519PrivateKey | None = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()
        """To be shown to who seals."""

    def open(self, sealed: bytes, *, purpose: str, box_id: str) -> bytes:
        """The text. To be called once, also when it fails. Raises SealBroken."""
        private, self._private = self._private, None
        if private is None:
            raise SealBroken("this key has opened its one text")
        theirs, text = sealed[:_PUBLIC], sealed[_PUBLIC:]
        bound = _bound(purpose, box_id)
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(theirs))
            return _cipher(shared, theirs, self.public, bound).decrypt(_NONCE, text, bound)
        except (InvalidTag, ValueError):
            raise SealBroken("it was not sealed for this") from None


def seal(text: bytes, public: bytes, *, purpose: str, box_id: str) -> bytes:
    """A text for the process with this public key. Raises ValueError when it is no such key."""
    own = X25519PrivateKey.generate()
    ours = own.public_key().public_bytes_raw()
    bound = _bound(purpose, box_id)
    shared = own.exchange(X25519PublicKey.from_public_bytes(public))
    return ours + _cipher(shared, ours, public, bound).encrypt(_NONCE, text, bound)


def _cipher(shared: bytes, sender: bytes, reader: bytes, bound: bytes) -> ChaCha20Poly1305:
    key = HKDF(SHA256(), 32, salt=sender + reader, info=bound).derive(shared)
    return ChaCha20Poly1305(key)


def _bound(purpose: str, box_id: str) -> bytes:
    return purpose.encode("utf-8") + b"\0" + box_id.encode("utf-8")
