"""Named workspaces: as stored, and what is shown of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.usage import DriveUse


@dataclass(frozen=True, slots=True)
class Workspace:
    """One named workspace of an owner; the default one is not stored.

    `profile` is the one of boxes whose spec names no image; None: none.
    """

    owner: str
    name: str
    created: datetime
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceView:
    """A workspace as its owner sees it. `name` None: the default one, which was never `created`.

    `drive` None: it was never used.
    """

    name: str | None
    boxes: int
    drive: DriveUse | None
    profile: str | None
    created: datetime | None

    def to_json(self) -> dict[str, Any]:
        """`bytes` and `files` are what the drive holds."""
        return {
            "name": self.name,
            "default": self.name is None,
            "boxes": self.boxes,
            "bytes": self.drive.bytes if self.drive else 0,
            "files": self.drive.files if self.drive else 0,
            "profile": self.profile,
            "created": self.created.isoformat() if self.created else None,
        }
