"""Snapshots of boxes as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a box at one moment. It outlives the box and is addressed by the box's name.

    `id` is 32 hex digits. From `image` on: what a box that is made of it gets, as in `Box`.
    """

    id: str
    owner: str
    workspace: str | None
    """None: the owner's default workspace."""
    box_name: str
    name: str
    """Unique among the snapshots of boxes of this name."""
    box_id: str
    """The box it was taken of; it may be gone."""
    created: datetime
    ready: bool
    """False while it is being made; what a crash leaves so is removed at the next start."""
    memory: bool
    """Processes go on from it; else a box that is made of it starts from its disk."""
    image: str
    flavor: str
    cpus: float
    mem_mb: int
    disk_mb: int
    pids: int
    egress: str
    drive: bool
    backend: str

    @property
    def ref(self) -> str:
        """The box it belongs to, as its owner addresses it."""
        return self.box_name if self.workspace is None else f"{self.workspace}/{self.box_name}"
