"""Sessions of browsers with one port of one box, as stored: never the cookie itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class ProxySession:
    """What a cookie stands for. It goes with its box, and with the key that made it.

    `id` is 32 hex digits; `owner` and `scope` are the key's; `host` is the preview host that it is
    for, None: the path of the API.
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
