"""Views for administrators: boxes with their owners, owners, and levels of use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.view import BoxView


@dataclass(frozen=True, slots=True)
class FleetBox:
    """A box and its owner. `ended` is the number of attachments that a command ended."""

    owner: str
    box: BoxView
    ended: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of the box with its owner."""
        return {"owner": self.owner} | self.box.to_json()


@dataclass(frozen=True, slots=True)
class OwnerView:
    """One owner.

    `bytes` is the disk space of its boxes at their last measurement, including images of memory,
    and of its snapshots and drives. `last_seen` None: not seen since the service began to record
    it. `blocked` None: not blocked.
    """

    owner: str
    tier: str
    boxes: int
    running: int
    bytes: int
    last_seen: datetime | None
    blocked: datetime | None
    name: str | None = None
    """The display name that the owner chose, which proves nothing. None: the owner has none."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "owner": self.owner,
            "tier": self.tier,
            "boxes": self.boxes,
            "running": self.running,
            "bytes": self.bytes,
            "last_seen": self.last_seen.isoformat() if self.last_seen else None,
            "blocked": self.blocked.isoformat() if self.blocked else None,
            "name": self.name,
        }


@dataclass(frozen=True, slots=True)
class Level:
    """The usage of a resource and its limit. A limit of None: as much as exists.

    `used` is a bool for a resource that is on or off.
    """

    what: str
    used: int | float | bool
    limit: int | float | None = None
    unit: str = ""
    """`MiB`, or empty for a count."""
