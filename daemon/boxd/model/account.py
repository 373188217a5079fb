"""What the operator decided on single owners, and what administrators did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Account:
    """One owner. `tier` is a name in tiers.toml, None: the default one. None of a time: never."""

    owner: str
    tier: str | None = None
    blocked: datetime | None = None
    """Since when nobody gets in with its keys."""
    last_seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """One command of an administrator, written before it was run.

    `id` is 32 hex digits, `admin` the fingerprint of the key, `line` what was typed, escaped.
    """

    id: str
    at: datetime
    admin: str
    line: str
    status: int | None = None
    """Its exit status; None: it did not come to an end."""
    owners: tuple[str, ...] = ()
    """Whom it was about, by fingerprint."""
