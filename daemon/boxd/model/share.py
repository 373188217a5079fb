"""Shares as stored. The database never has the token itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
