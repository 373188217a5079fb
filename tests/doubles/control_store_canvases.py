"""Canvases of ControlStore in memory; see `memory`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.canvas import Canvas


class MemoryCanvases:
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._canvases: dict[tuple[str, str, str], tuple[Canvas, str]] = {}

    async def put_canvas(self, canvas: Canvas, content: str) -> None:
        """See ControlStore."""
        self._canvases[canvas.owner, canvas.scope or "", canvas.id] = (canvas, content)

    async def canvases(self, owner: str, scope: str | None) -> list[Canvas]:
        """See ControlStore."""
        place = (owner, scope or "")
        return [one for key, (one, _) in sorted(self._canvases.items()) if key[:2] == place]

    async def canvas(
        self, owner: str, scope: str | None, canvas_id: str
    ) -> tuple[Canvas, str] | None:
        """See ControlStore."""
        return self._canvases.get((owner, scope or "", canvas_id))

    async def remove_canvas(self, owner: str, scope: str | None, canvas_id: str) -> None:
        """See ControlStore."""
        self._canvases.pop((owner, scope or "", canvas_id), None)

    async def remove_canvases(self, before: datetime) -> None:
        """See ControlStore."""
        self._canvases = {
            key: one
            for key, one in self._canvases.items()
            if one[0].expires is None or one[0].expires > before
        }
