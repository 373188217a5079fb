"""Canvases: documents that programs render for users."""

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
    """One stored document without its content.

    The program that renders the document chooses its `id`, which is unique in its `scope`. The
    scope is the workspace of a scoped credential, or None for the whole account. `revision` starts
    at 1. `size` is the number of bytes of the content.
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
    """When the document expires. None: never."""

    @property
    def uri(self) -> str:
        """The URI of the document as an MCP resource."""
        return f"svc://surfaces/{self.id}"

    def lives(self, now: datetime) -> bool:
        """Return whether the document has not expired."""
        return self.expires is None or now < self.expires

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
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
