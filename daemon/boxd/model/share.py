"""Shares as stored. The database never has the token itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Share:
    """A link to one box for users without its owner's key. It ends with the box.

    `id` is 32 hex digits, `owner` is the owner of the box. `expires` None: never.
    """

    id: str
    owner: str
    box_id: str
    created: datetime
    expires: datetime | None
    last_used: datetime | None


@dataclass(frozen=True, slots=True)
class SharedBox:
    """A share, and the current reference of its box."""

    share: Share
    ref: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without the token."""
        share = self.share
        return {
            "id": share.id,
            "box": self.ref,
            "box_id": share.box_id,
            "created": share.created.isoformat(),
            "expires": share.expires.isoformat() if share.expires else None,
            "last_used": share.last_used.isoformat() if share.last_used else None,
        }
