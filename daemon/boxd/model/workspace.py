"""Named workspaces as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Workspace:
    """One named workspace of an owner; the default one is not stored.

    `profile` is the one of boxes whose spec names no image; None: none.
    """

    owner: str
    name: str
    created: datetime
    profile: str | None = None
