"""Browser sessions with one port of one box. The database never has the cookie itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class ProxySession:
    """The session of a cookie. It ends with its box and with the key that created it.

    `id` is 32 hex digits. `owner` and `scope` are those of the key. `host` is the preview host of
    the session; None: the session is for the path of the API.
    """

    id: str
    owner: str
    scope: str | None
    key_id: str
    box_id: str
    port: int
    host: str | None
    created: datetime
    expires: datetime
