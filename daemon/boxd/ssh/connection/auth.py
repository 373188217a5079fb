"""Authentication by public key: which keys are accepted, and which one a client proved.

Every key of a safe type is an identity. Its SHA-256 fingerprint is the owner, unless the key is
linked to another account. Nothing here has an
effect outside the connection, because clients offer keys without a signature to learn which ones
the server accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from box_guest.shared.algorithms import SAFE_SIGNATURES, SIGNATURES
from boxd.names.words import fold
from boxd.principal import Principal, ProvedKey

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    import asyncssh

MAX_REJECTED = 6
"""Rejected keys after which the connection is closed."""
MAX_ATTEMPTS = 32
"""Maximum number of keys that a client may offer or prove on one connection. This bounds the cost
of a client that tries keys endlessly."""
RSA_MIN_BITS = 2048
ADMIN_USER = "sudo"
"""The user name for which only the keys of administrators authenticate."""

KEY_TYPES = frozenset(name.encode() for name in SIGNATURES if not name.startswith("rsa-")) | {
    b"ssh-rsa"
}
"""Key types that are accepted as identities."""


def fingerprint_of_key(key: asyncssh.SSHKey) -> str | None:
    """Return the fingerprint of a key, or None if its type or size is not safe.

    An accepted RSA key no longer verifies SHA-1 signatures. The list that a server announces does
    not bind a client, and asyncssh checks only the algorithms that the key supports.
    """
    if key.algorithm not in KEY_TYPES:
        return None
    if key.algorithm == b"ssh-rsa" and _modulus_bits(key) < RSA_MIN_BITS:
        return None
    key.all_sig_algorithms = {name for name in key.all_sig_algorithms if name in SAFE_SIGNATURES}
    return key.get_fingerprint("sha256")


def _modulus_bits(key: asyncssh.SSHKey) -> int:
    """Return the size of an RSA modulus.

    The public blob has length-prefixed fields: name, exponent, modulus.
    """
    blob, fields = key.public_data, []
    while blob:
        size = int.from_bytes(blob[:4], "big")
        fields.append(blob[4 : 4 + size])
        blob = blob[4 + size :]
    return int.from_bytes(fields[-1], "big").bit_length()


def _reject_signatures(key: asyncssh.SSHKey) -> None:
    """Make the key reject all signatures, in the time that a real check takes."""
    check = key.verify

    def verify(data: bytes, sig: bytes) -> bool:
        check(data, sig)
        return False

    vars(key)["verify"] = verify


@dataclass(slots=True)
class Authentication:
    """The authentication state of one connection.

    asyncssh asks for a key, verifies the signature and reports completion without an await in
    between. So the last accepted pair of user and key is the one that the client proved.
    """

    administrators: Container[str] = frozenset()
    """Fingerprints. Each offered key is checked against the current members."""
    account_of: Callable[[str], str | None] = lambda fingerprint: fingerprint
    """Returns the account that a key opens. None: the key opens no account."""
    address: str = ""
    """The address of the client; empty: it has none."""
    rejected: int = 0
    attempts: int = 0
    username: str = ""
    principal: Principal | None = None
    _fingerprint: str | None = field(default=None, repr=False)
    _key: asyncssh.SSHKey | None = field(default=None, repr=False)

    def offer(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Return whether the client may use the key, for the probe and for the signed request.

        A safe key is accepted for every user name. For user `sudo`, the signature of a key that is
        not an administrator's then fails. So neither a probe nor the time of a rejection reveals
        whose keys are administrators' keys.
        """
        self.attempts += 1
        self.username, self._fingerprint, self._key = username, fingerprint_of_key(key), key
        if self._fingerprint is None:
            self.rejected += 1
        elif self._is_admin_user and self._fingerprint not in self.administrators:
            _reject_signatures(key)
        return self._fingerprint is not None

    @property
    def _is_admin_user(self) -> bool:
        return fold(self.username) == ADMIN_USER

    @property
    def public_key(self) -> str:
        """The proved key, one line in OpenSSH form without a comment.

        Raises RuntimeError before authentication is complete.
        """
        if self.principal is None:
            raise RuntimeError("no key is proved")
        return self._public_key()

    def _public_key(self) -> str:
        if self._key is None:
            raise RuntimeError("the client has offered no key")
        key_type, blob, *_ = self._key.export_public_key().decode().split()
        return f"{key_type} {blob}"

    @property
    def exhausted(self) -> bool:
        """Whether the client made too many attempts, so that the connection must be closed."""
        return self.rejected >= MAX_REJECTED or self.attempts > MAX_ATTEMPTS

    def complete(self) -> Principal | None:
        """Return the principal of the proved key; `via` is "admin" only for administrators.

        The rights of an administrator belong to the key, not to the account that the key opens.
        Returns None for a key that opens no account. Raises RuntimeError if no key was accepted.
        """
        if self._fingerprint is None:
            raise RuntimeError("authentication completed without an accepted key")
        if self._is_admin_user and self._fingerprint in self.administrators:
            self.principal = Principal(self._fingerprint, None, "admin")
        elif (owner := self.account_of(self._fingerprint)) is not None:
            proved = ProvedKey(self._fingerprint, self._public_key(), self.address)
            self.principal = Principal(owner, None, "ssh_key", proved=proved)
        return self.principal
