"""Canvases: documents that programs render for people, as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

Mime: TypeAlias = Literal[
    "text/markdown", "text/plain", "text/html", "application/json", "image/svg+xml"
]


@dataclass(frozen=True, slots=True)
class Canvas:
    """One document without its content.

    `id` is chosen by who renders it, and its own in its `scope`: the workspace that a credential is
    confined to, None for the whole account. `revision` counts from 1. `size`: bytes of the content.
    """

    owner: str
    scope: str | None
    id: str
    title: str
    mime: Mime
    size: int
    revision: int
    updated: datetime
    expires: datetime | None
    """It is gone from then on; None: never."""

    @property
    def uri(self) -> str:
        """As a resource."""
        return f"svc://surfaces/{self.id}"

    def lives(self, now: datetime) -> bool:
        """Whether it is still there."""
        return self.expires is None or now < self.expires

    def to_json(self) -> dict[str, Any]:
        """The one JSON form."""
        return {
            "id": self.id,
            "title": self.title,
            "mime": self.mime,
            "size": self.size,
            "revision": self.revision,
            "scope": self.scope,
            "updated": self.updated.isoformat(),
            "expires": self.expires.isoformat() if self.expires else None,
            "uri": self.uri,
        }
