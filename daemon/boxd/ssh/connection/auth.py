"""Who is at the door: which public keys are identities, and which of them proved itself.

Every key of a safe kind is an identity; its SHA-256 fingerprint is the owner. Nothing here has a
side effect outside the connection: clients offer keys without a signature to see which would do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from box_guest.shared.algorithms import SAFE_SIGNATURES, SIGNATURES
from boxd.names.words import fold
from boxd.principal import Principal

if TYPE_CHECKING:
    from collections.abc import Container

    import asyncssh

    from boxd.principal import Via

MAX_REJECTED = 6
"""Rejected keys of one connection, then it is closed."""
MAX_TRIES = 32
"""Keys offered or proved on one connection; bounds what an endless prober costs."""
RSA_MIN_BITS = 2048
ADMINISTRATOR = "sudo"
"""The user for whom only keys of administrators authenticate."""

KINDS = frozenset(name.encode() for name in SIGNATURES if not name.startswith("rsa-")) | {
    b"ssh-rsa"
}
"""Of keys that are identities."""


def accept(key: asyncssh.SSHKey) -> str | None:
    """The owner that a key stands for, or None for a kind or size that is not safe.

    An accepted RSA key verifies no SHA-1 signature any more: the list that a server announces
    does not bind a client, and asyncssh checks what the key says it can.
    """
    if key.algorithm not in KINDS:
        return None
    if key.algorithm == b"ssh-rsa" and _modulus_bits(key) < RSA_MIN_BITS:
        return None
    key.all_sig_algorithms = {name for name in key.all_sig_algorithms if name in SAFE_SIGNATURES}
    return key.get_fingerprint("sha256")


def _modulus_bits(key: asyncssh.SSHKey) -> int:
    """Size of an RSA modulus, from the public blob: name, exponent, modulus, length-prefixed."""
    blob, numbers = key.public_data, []
    while blob:
        size = int.from_bytes(blob[:4], "big")
        numbers.append(blob[4 : 4 + size])
        blob = blob[4 + size :]
    return int.from_bytes(numbers[-1], "big").bit_length()


def _refuse_signatures(key: asyncssh.SSHKey) -> None:
    """Has the key look at signatures as long as ever, and take none."""
    look = key.verify

    def verify(data: bytes, sig: bytes) -> bool:
        look(data, sig)
        return False

    vars(key)["verify"] = verify


@dataclass(slots=True)
class Authentication:
    """State of one connection's authentication.

    asyncssh asks for a key, verifies the signature and reports completion without an await
    between, so the last accepted pair at completion is the one that was proved.
    """

    administrators: Container[str] = frozenset()
    """Owners; looked up when a key is offered."""
    rejected: int = 0
    tries: int = 0
    username: str = ""
    principal: Principal | None = None
    _owner: str | None = field(default=None, repr=False)
    _key: asyncssh.SSHKey | None = field(default=None, repr=False)

    def offer(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Whether the key may be used. Called for the probe and again for the signed request.

        It may for every user; but the signature of who is no administrator is never good where
        one is asked for. So nobody learns from a probe, or from the time that a refusal takes,
        whose a key is that he has not.
        """
        self.tries += 1
        self.username, self._owner, self._key = username, accept(key), key
        if self._owner is None:
            self.rejected += 1
        elif self._administers and self._owner not in self.administrators:
            _refuse_signatures(key)
        return self._owner is not None

    @property
    def _administers(self) -> bool:
        return fold(self.username) == ADMINISTRATOR

    @property
    def public_key(self) -> str:
        """The key that was proved, one line in OpenSSH form without a comment."""
        if self._key is None or self.principal is None:
            raise RuntimeError("no key is proved")
        kind, blob, *_ = self._key.export_public_key().decode().split()
        return f"{kind} {blob}"

    @property
    def exhausted(self) -> bool:
        """Too many tries: the connection is to be closed."""
        return self.rejected >= MAX_REJECTED or self.tries > MAX_TRIES

    def complete(self) -> Principal:
        """Binds the pair that was proved. Who is no administrator never becomes one here."""
        if self._owner is None:
            raise RuntimeError("authentication completed without an accepted key")
        admitted = self._administers and self._owner in self.administrators
        via: Via = "admin" if admitted else "ssh_key"
        self.principal = Principal(self._owner, None, via)
        return self.principal
