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
    """The state of a box at one moment. It outlives the box; references use the name of the box.

    `id` is 32 hex digits. The fields from `image` on have the values for a box that starts from the
    snapshot, as in `Box`.
    """

    id: str
    owner: str
    workspace: str | None
    """None: the owner's default workspace."""
    box_name: str
    name: str
    """Unique among the snapshots of boxes of this name."""
    box_id: str
    """The box of the snapshot, which may be removed."""
    created: datetime
    ready: bool
    """False while the service creates the snapshot. After a crash, the next start removes it."""
    memory: bool
    """Whether processes resume from the snapshot. Otherwise a box starts from the disk."""
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
    """Bytes on the host's disk, some of which other snapshots may share. 0: unknown."""
    profile: str | None = None
    runtime: str = ""
    containers: bool = False

    @property
    def ref(self) -> str:
        """The owner's reference to the box of the snapshot."""
        return self.box_name if self.workspace is None else f"{self.workspace}/{self.box_name}"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        members: dict[str, Any] = {"snapshot": self.name, "box": self.ref}
        if self.workspace is not None:
            members["workspace"] = self.workspace
        return members | {
            "memory": self.memory,
            "image": self.image,
            "flavor": self.flavor,
            "size_bytes": self.size_bytes,
            "created": self.created.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A snapshot as its owner sees it. `box_removed`: the box of the snapshot is removed.

    A later box of the same name is another box.
    """

    snapshot: Snapshot
    box_removed: bool

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return self.snapshot.to_json() | {"box_removed": self.box_removed}


def snapshot_of(box: Box, snapshot_id: str, name: str, now: datetime) -> Snapshot:
    """Return the record of a snapshot of the box in its current state, not yet `ready`."""
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
        profile=box.profile,
        runtime=box.runtime,
        containers=box.containers,
    )
