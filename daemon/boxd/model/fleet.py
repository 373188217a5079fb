"""What administrators see: boxes with their owners, owners, levels; one JSON form each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.view import BoxView


@dataclass(frozen=True, slots=True)
class FleetBox:
    """A box and whose it is. `ended`: attachments that a command ended."""

    owner: str
    box: BoxView
    ended: int = 0

    def to_json(self) -> dict[str, Any]:
        """The owner, and the JSON form of the box."""
        return {"owner": self.owner} | self.box.to_json()


@dataclass(frozen=True, slots=True)
class OwnerView:
    """One owner. `bytes`: what its boxes had on the host's disk when they were measured last, and
    its drives. `last_seen` None: not since this is written down; `blocked` None: not blocked."""

    owner: str
    tier: str
    boxes: int
    running: int
    bytes: int
    last_seen: datetime | None
    blocked: datetime | None

    def to_json(self) -> dict[str, Any]:
        """As named."""
        return {
            "owner": self.owner,
            "tier": self.tier,
            "boxes": self.boxes,
            "running": self.running,
            "bytes": self.bytes,
            "last_seen": self.last_seen.isoformat() if self.last_seen else None,
            "blocked": self.blocked.isoformat() if self.blocked else None,
        }


@dataclass(frozen=True, slots=True)
class Level:
    """How much of something is in use, and how much may be; None: as much as there is.

    Of what is on or off, `used` is a bool.
    """

    what: str
    used: int | float | bool
    limit: int | float | None = None
    unit: str = ""
    """`MiB`, or nothing for a number of things."""
