"""SSH keys of accounts as stored: public keys only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

FIRST = "first"
"""The name of each account's first key. No other key may have it."""


@dataclass(frozen=True, slots=True)
class AccountKey:
    """One SSH key of an account.

    `fingerprint` is `SHA256:...`. `owner` is the account: the fingerprint of its first key.
    `public_key` is one line in OpenSSH form; empty: not recorded. A time of None: unknown or never.
    `removed`: the key opens no account since then.
    """

    fingerprint: str
    owner: str
    name: str
    public_key: str = ""
    added: datetime | None = None
    last_used: datetime | None = None
    removed: datetime | None = None

    @classmethod
    def first_of(cls, owner: str) -> AccountKey:
        """Return the first key of an account, without its facts."""
        return cls(owner, owner, FIRST)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "first": self.fingerprint == self.owner,
            "public_key": self.public_key or None,
            "added": self.added.isoformat() if self.added else None,
            "last_used": self.last_used.isoformat() if self.last_used else None,
        }
