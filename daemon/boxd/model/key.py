"""API keys as stored. The database never has the key itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key. `scope` None: the whole account. `expires` None: never."""

    id: str
    owner: str
    name: str
    scope: str | None
    created: datetime
    expires: datetime | None
    last_used: datetime | None

    def lives(self, now: datetime) -> bool:
        """Return whether the key has not expired."""
        return self.expires is None or now < self.expires

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without the key itself."""
        return {
            "name": self.name,
            "scope": self.scope,
            "created": self.created.isoformat(),
            "expires": self.expires.isoformat() if self.expires else None,
            "last_used": self.last_used.isoformat() if self.last_used else None,
        }
