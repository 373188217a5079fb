"""The operator's decisions about single owners, and the audit of administrators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Account:
    """One owner. `tier` is a name in tiers.toml; None: the default tier. A time of None: never."""

    owner: str
    tier: str | None = None
    blocked: datetime | None = None
    """The service rejects the owner's keys from this time on."""
    last_seen: datetime | None = None
    name: str | None = None
    """The display name that the owner chose."""


@dataclass(frozen=True, slots=True)
class Audit:
    """One command of an administrator. The service stores it before it runs the command.

    `id` is 32 hex digits, `admin` the fingerprint of the key, `line` the command line, escaped.
    """

    id: str
    at: datetime
    admin: str
    line: str
    status: int | None = None
    """The exit status. None: the command has not ended."""
    owners: tuple[str, ...] = ()
    """Fingerprints of the owners that the command affected."""
