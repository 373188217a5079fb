"""Snapshots of boxes as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.model.box import BoxState

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.box import Box


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
    size_bytes: int = 0
    """What it takes on the host's disk, where it may share parts with others; 0: not known."""

    @property
    def ref(self) -> str:
        """The box it belongs to, as its owner addresses it."""
        return self.box_name if self.workspace is None else f"{self.workspace}/{self.box_name}"

    def to_json(self) -> dict[str, Any]:
        """What is shown of it."""
        shown: dict[str, Any] = {"snapshot": self.name, "box": self.ref}
        if self.workspace is not None:
            shown["workspace"] = self.workspace
        return shown | {
            "memory": self.memory,
            "image": self.image,
            "flavor": self.flavor,
            "size_bytes": self.size_bytes,
            "created": self.created.isoformat(),
        }


def snapshot_of(box: Box, snapshot_id: str, name: str, now: datetime) -> Snapshot:
    """The record of a snapshot of the box as it is now, not `ready` yet."""
    return Snapshot(
        id=snapshot_id,
        owner=box.owner,
        workspace=box.workspace,
        box_name=box.name,
        name=name,
        box_id=box.id,
        created=now,
        ready=False,
        memory=box.memory or box.state is BoxState.RUNNING,
        image=box.image,
        flavor=box.flavor,
        cpus=box.cpus,
        mem_mb=box.mem_mb,
        disk_mb=box.disk_mb,
        pids=box.pids,
        egress=box.egress,
        drive=box.drive,
        backend=box.backend,
    )
