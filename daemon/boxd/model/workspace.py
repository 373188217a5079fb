"""Workspaces: the stored record and the view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.usage import DriveUse


@dataclass(frozen=True, slots=True)
class Workspace:
    """One named workspace of an owner. The database has no row for the default workspace.

    `profile` is the profile of boxes whose spec names no image. None: no profile.
    """

    owner: str
    name: str
    created: datetime
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceView:
    """A workspace as its owner sees it. `name` None: the default workspace, without `created`.

    `drive` None: the drive has never been used.
    """

    name: str | None
    boxes: int
    drive: DriveUse | None
    profile: str | None
    created: datetime | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form. `bytes` and `files` are the content of the drive."""
        return {
            "name": self.name,
            "default": self.name is None,
            "boxes": self.boxes,
            "bytes": self.drive.bytes if self.drive else 0,
            "files": self.drive.files if self.drive else 0,
            "profile": self.profile,
            "created": self.created.isoformat() if self.created else None,
        }
