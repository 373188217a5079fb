"""Volumes: the stored form of one drive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume, of (owner, workspace), which has one in use. Role, schema and prefix are random
    and meaningless.

    `sealed` holds its credentials (`wrkfs.config.VolumeConfig` as JSON) encrypted with the key
    file of the state directory: the database never sees them in clear.
    """

    id: str
    owner: str
    workspace: str | None
    role: str
    schema: str
    prefix: str
    sealed: bytes = field(repr=False)
    created: datetime
    trashed_until: datetime | None = None
    """It is in the trash, and destroyed then; None: it is in use."""
