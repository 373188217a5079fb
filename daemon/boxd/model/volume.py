"""Volumes: drives as stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume of an owner's workspace. Each workspace has at most one volume in use.

    Role, schema and prefix are random names. `sealed` has the credentials
    (`wrkfs.config.VolumeConfig` as JSON), encrypted with the key file of the state directory. The
    database never has them in plain text.
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
    """When the service destroys the volume in the trash. None: the volume is in use."""
