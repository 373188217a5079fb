"""Snapshots of boxes, and forks of boxes and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, checked_workspace, joined_workspace, require
from boxd.boxes.lifecycle.snapshots import RESERVED
from boxd.errors import BadRequest, Conflict, NotFound
from boxd.model.progress import SILENT
from boxd.model.snapshot import SnapshotView
from boxd.names.reference import parse_reference
from boxd.names.words import parse_name

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.model.box import Box
    from boxd.model.progress import Progress
    from boxd.model.snapshot import Snapshot
    from boxd.model.view import BoxView
    from boxd.operations.shared.box_directory import BoxDirectory
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

AT = "@"
"""Separates a box from its snapshot in a reference: `BOX@NAME`."""


class SnapshotOperations:
    """Creates, lists, removes and restores snapshots, and forks boxes. Holds no state."""

    def __init__(
        self,
        store: ControlStore,
        directory: BoxDirectory,
        lifecycle: Lifecycle,
    ) -> None:
        self._store = store
        self._directory = directory
        self._lifecycle = lifecycle

    async def create_snapshot(
        self, p: Principal, ref: str, name: str | None = None, ws: str | None = None
    ) -> SnapshotView:
        """Save the disk and memory of a box under a name; None: a generated name.

        Raises BadRequest; Conflict with the attachment that uses the box, or if the name is taken.
        """
        require(p, Action.SNAPSHOT_BOX)
        snapshot_name = None if name is None else parse_name(name, "snapshot name")
        if snapshot_name is not None and RESERVED.fullmatch(snapshot_name):
            raise BadRequest(
                f"snapshot name {snapshot_name} is reserved, because a restore replaces this "
                "snapshot; choose another name"
            )
        snapshot = await self._lifecycle.snapshot(
            await self._directory.resolve(p, ref, ws), snapshot_name
        )
        return SnapshotView(snapshot, box_removed=False)

    async def list_snapshots(
        self, p: Principal, ref: str | None = None, ws: str | None = None
    ) -> list[SnapshotView]:
        """Return complete snapshots: of one box, of a workspace, or all that the principal can see.

        The box may have been removed.
        """
        require(p, Action.SNAPSHOT_BOX)
        snapshots = [one for one in await self._store.snapshots(p.owner) if one.ready]
        if ref is not None:
            place = await self._place(p, ref, ws)
            snapshots = [one for one in snapshots if (one.workspace, one.box_name) == place]
        elif ws is not None or p.scope is not None:
            workspace = checked_workspace(p, ws)
            snapshots = [one for one in snapshots if one.workspace == workspace]
        boxes = {box.id for box in await self._store.boxes(p.owner)}
        return [SnapshotView(one, one.box_id not in boxes) for one in snapshots]

    async def remove_snapshot(
        self, p: Principal, ref: str, name: str, ws: str | None = None
    ) -> Snapshot:
        """Remove a snapshot, even of a removed box, and return it.

        Raises NotFound; Conflict with the profile that was built from it.
        """
        require(p, Action.SNAPSHOT_BOX)
        snapshot = await self._snapshot(p, ref, name, ws)
        for profile in await self._store.profiles(p.owner):
            if profile.snapshot == snapshot.id:
                raise Conflict(
                    f"profile {profile.name} was built from it, and new boxes start from it; "
                    f"first: profiles rm {profile.name}"
                )
        await self._lifecycle.snapshots.remove(snapshot)
        return snapshot

    async def restore_snapshot(
        self, p: Principal, ref: str, name: str, ws: str | None = None
    ) -> BoxView:
        """Restore a box from one of its snapshots, and save its current state. Raises Conflict."""
        require(p, Action.SNAPSHOT_BOX)
        box = await self._directory.resolve(p, ref, ws)
        return self._directory.view(await self._lifecycle.restore(box, name))

    async def fork(
        self,
        p: Principal,
        base: str,
        spec: str,
        ws: str | None = None,
        *,
        progress: Progress = SILENT,
    ) -> BoxView:
        """Create a running box of a spec from a box, or from a snapshot: `BOX@NAME`."""
        require(p, Action.SNAPSHOT_BOX)
        ref, at, name = base.rpartition(AT)
        origin: Box | Snapshot
        if at:
            origin = await self._snapshot(p, ref, name, ws)
        else:
            origin = await self._directory.resolve(p, base, ws)
        box_spec, workspace = await self._directory.creatable(p, spec, ws, anonymous=False)
        return self._directory.view(
            await self._lifecycle.fork(origin, workspace, box_spec, progress)
        )

    async def _snapshot(self, p: Principal, ref: str, name: str, ws: str | None) -> Snapshot:
        workspace, box_name = await self._place(p, ref, ws)
        return await self._lifecycle.snapshots.find(p.owner, workspace, box_name, name)

    async def _place(self, p: Principal, ref: str, ws: str | None) -> tuple[str | None, str]:
        """Return the workspace and name of a box, which may have been removed."""
        try:
            box = await self._directory.resolve(p, ref, ws)
        except NotFound:
            reference = parse_reference(ref)
            return joined_workspace(p, reference.workspace, ws), reference.name
        return box.workspace, box.name
