"""Snapshots of boxes, and boxes that are made of them or of other boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.boxes.snapshots import RESERVED
from boxd.errors import BadRequest, Conflict, NotFound
from boxd.names.reference import parse_reference
from boxd.names.words import parse_name
from boxd.operations.boxes import BoxOperations
from boxd.operations.core import checked_workspace, joined_workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.model.box import Box
    from boxd.model.snapshot import Snapshot
    from boxd.model.view import BoxView
    from boxd.principal import Principal

AT = "@"
"""Between a box and one of its snapshots, where either may be meant."""


class SnapshotOperations(BoxOperations):
    """See the module."""

    async def create_snapshot(
        self, p: Principal, ref: str, name: str | None = None, ws: str | None = None
    ) -> Snapshot:
        """Keeps disk and memory of a box. Conflict names who uses it, or a taken name."""
        require(p, Action.SNAPSHOT_BOX)
        chosen = None if name is None else parse_name(name, "snapshot name")
        if chosen is not None and RESERVED.fullmatch(chosen):
            raise BadRequest(
                f"{chosen} is what a restore keeps of a box, and replaces: choose another name "
                "for the snapshot"
            )
        return await self._lifecycle.snapshot(await self.resolve(p, ref, ws), chosen)

    async def list_snapshots(
        self, p: Principal, ref: str | None = None, ws: str | None = None
    ) -> list[Snapshot]:
        """Whole snapshots: of one box (which may be gone), of a workspace, or all that it may."""
        require(p, Action.SNAPSHOT_BOX)
        found = [one for one in await self._store.snapshots(p.owner) if one.ready]
        if ref is not None:
            place = await self._place(p, ref, ws)
            return [one for one in found if (one.workspace, one.box_name) == place]
        workspace = checked_workspace(p, ws)
        everywhere = ws is None and p.scope is None
        return [one for one in found if everywhere or one.workspace == workspace]

    async def remove_snapshot(
        self, p: Principal, ref: str, name: str, ws: str | None = None
    ) -> Snapshot:
        """Forgets a snapshot, also of a box that is gone. NotFound; Conflict names a profile that
        was built of it."""
        require(p, Action.SNAPSHOT_BOX)
        snapshot = await self._snapshot(p, ref, name, ws)
        for profile in await self._store.profiles(p.owner):
            if profile.snapshot == snapshot.id:
                raise Conflict(
                    f"profile {profile.name} was built of it, and boxes start from it; "
                    f"first: profiles rm {profile.name}"
                )
        await self._lifecycle.snapshots.remove(snapshot)
        return snapshot

    async def restore_snapshot(
        self, p: Principal, ref: str, name: str, ws: str | None = None
    ) -> BoxView:
        """Gives a box the state of one of its snapshots, and keeps what it was. Conflict."""
        require(p, Action.SNAPSHOT_BOX)
        box = await self.resolve(p, ref, ws)
        return self._view(await self._lifecycle.restore(box, name))

    async def fork(
        self,
        p: Principal,
        base: str,
        spec: str,
        ws: str | None = None,
        *,
        notes: Callable[[str], None] | None = None,
    ) -> BoxView:
        """A new running box of a spec, made of a box, or of a snapshot: `BOX@NAME`."""
        require(p, Action.SNAPSHOT_BOX)
        ref, at, name = base.rpartition(AT)
        origin: Box | Snapshot
        if at:
            origin = await self._snapshot(p, ref, name, ws)
        else:
            origin = await self.resolve(p, base, ws)
        wanted, workspace = await self._creatable(p, spec, ws, anonymous=False)
        return self._view(await self._lifecycle.fork(origin, workspace, wanted, notes=notes))

    async def _snapshot(self, p: Principal, ref: str, name: str, ws: str | None) -> Snapshot:
        workspace, box_name = await self._place(p, ref, ws)
        return await self._lifecycle.snapshots.find(p.owner, workspace, box_name, name)

    async def _place(self, p: Principal, ref: str, ws: str | None) -> tuple[str | None, str]:
        """Workspace and name of a box, which may be gone."""
        try:
            box = await self.resolve(p, ref, ws)
        except NotFound:
            reference = parse_reference(ref)
            return joined_workspace(p, reference.workspace, ws), reference.name
        return box.workspace, box.name
