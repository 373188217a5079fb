"""Workspaces: worlds of an owner with box names and a drive of their own."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import Conflict, NotFound
from boxd.model.workspace import Workspace, WorkspaceView
from boxd.names.words import parse_workspace, shown
from boxd.operations.profiles import ProfileOperations

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from boxd.model.box import Box
    from boxd.model.snapshot import Snapshot
    from boxd.model.usage import DriveUse
    from boxd.principal import Principal

_SHOWN = 5
"""Names in a refusal."""


class WorkspaceOperations(ProfileOperations):
    """See the module."""

    async def list_workspaces(self, p: Principal) -> list[WorkspaceView]:
        """The workspaces of the owner, the default one first; of a scoped credential its own."""
        require(p, Action.LIST_WORKSPACES)
        default = Workspace(p.owner, "", self._clock.now())
        found = [default, *await self._store.list_workspaces(p.owner)]
        boxes = await self._store.boxes(p.owner)
        drives = await self.drive_usage(p)
        return [
            WorkspaceView(
                name=one.name or None,
                boxes=sum(box.workspace == (one.name or None) for box in boxes),
                drive=drives.get(one.name or None),
                profile=one.profile,
                created=one.created if one.name else None,
            )
            for one in found
            if p.scope in (None, one.name)
        ]

    async def drive_usage(self, p: Principal) -> dict[str | None, DriveUse]:
        """What the drives hold that the principal may read; one never used is missing."""
        require(p, Action.READ_DRIVE)
        if self._drives is None:
            return {}
        found = await self._drives.usage(p.owner)
        return {name: use for name, use in found.items() if p.scope in (None, name)}

    async def create_workspace(self, p: Principal, name: str) -> WorkspaceView:
        """Makes a workspace. Conflict when it is there; QuotaExceeded."""
        require(p, Action.CREATE_WORKSPACE)
        name = parse_workspace(name)
        if name in await self._store.workspaces(p.owner):
            raise Conflict(f"there is a workspace {name} already; see: ws ls")
        await self._ensure_workspace(p, name)
        return WorkspaceView(name, 0, None, None, self._clock.now())

    async def set_workspace_profile(
        self, p: Principal, name: str, profile: str | None
    ) -> WorkspaceView:
        """Points a workspace at the profile of its boxes that name no image; None: at none.

        Boxes that are there stay as they are. NotFound.
        """
        require(p, Action.CHANGE_PROFILE)
        workspace = await self._workspace(p, name)
        chosen = None if profile is None else (await self.show_profile(p, profile)).name
        await self._store.set_workspace_profile(p.owner, workspace.name, chosen)
        views = {view.name: view for view in await self.list_workspaces(p)}
        if workspace.name not in views:
            raise NotFound(f"workspace {workspace.name} was removed")
        return replace(views[workspace.name], profile=chosen)

    async def remove_workspace(
        self,
        p: Principal,
        name: str,
        *,
        force: bool = False,
        notes: Callable[[str], None] | None = None,
    ) -> Workspace:
        """Removes a workspace with its secrets, its canvases and the keys confined to it.

        While boxes, snapshots or files are in it: Conflict, or with `force` they go first. `notes`
        gets lines for people. NotFound; what fails in between can be done again.
        """
        require(p, Action.REMOVE_WORKSPACE)
        workspace = await self._workspace(p, name)
        with self._closing(workspace):
            boxes, snapshots = await self._inside(workspace)
            if not force:
                await self._check_unused(workspace, boxes, snapshots)
            for box in boxes:
                await self._lifecycle.remove(box)
            for snapshot in snapshots:
                await self._lifecycle.snapshots.remove(snapshot)
            await self._tell_built(p, snapshots, notes)
            if self._drives is not None:
                until = await self._drives.remove(p.owner, workspace.name)
                if until is not None and notes is not None:
                    shown = until.strftime("%Y-%m-%d %H:%M")
                    notes(f"the operator can bring its files back until {shown} UTC")
            await self._revoke(workspace, notes)
            boxes, _ = await self._inside(workspace)
            if boxes:
                raise Conflict(f"box {boxes[0].ref} was made meanwhile; try again")
            await self._store.remove_workspace(p.owner, workspace.name)
        return workspace

    def _closing(self, workspace: Workspace) -> AbstractContextManager[None]:
        if self._drives is None:
            return nullcontext()
        return self._drives.closing(workspace.owner, workspace.name)

    async def _workspace(self, p: Principal, name: str) -> Workspace:
        name = parse_workspace(name)
        for one in await self._store.list_workspaces(p.owner):
            if one.name == name:
                return one
        raise NotFound(f"no workspace {shown(name)}; see: ws ls")

    async def _inside(self, workspace: Workspace) -> tuple[list[Box], list[Snapshot]]:
        """What of a workspace stands on the host, unfinished snapshots included."""
        owner, name = workspace.owner, workspace.name
        boxes = [one for one in await self._store.boxes(owner) if one.workspace == name]
        kept = [one for one in await self._store.snapshots(owner) if one.workspace == name]
        return boxes, kept

    async def _check_unused(
        self, workspace: Workspace, boxes: list[Box], snapshots: list[Snapshot]
    ) -> None:
        """Conflict that says what is in the workspace."""
        found = []
        if boxes:
            found.append(_listed("box", "boxes", [box.name for box in boxes]))
        if snapshots:
            names = [f"{one.box_name}@{one.name}" for one in snapshots]
            found.append(_listed("snapshot", "snapshots", names))
        drives = self._drives
        if drives is not None and not await drives.is_empty(workspace.owner, workspace.name):
            found.append("files on its drive")
        if found:
            raise Conflict(
                f"workspace {workspace.name} has {' and '.join(found)}; "
                f"to remove all of it: ws rm {workspace.name} --force"
            )

    async def _tell_built(
        self, p: Principal, gone: list[Snapshot], notes: Callable[[str], None] | None
    ) -> None:
        """Profiles that were built of boxes of a workspace outlive it without what they need."""
        ids = {snapshot.id for snapshot in gone}
        for profile in await self._store.profiles(p.owner):
            if notes is not None and profile.snapshot in ids:
                notes(f"profile {profile.name} was built of {profile.built_from}, which is gone")

    async def _revoke(self, workspace: Workspace, notes: Callable[[str], None] | None) -> None:
        """What a workspace of its name would take over: secrets, keys, canvases, questions."""
        owner, name = workspace.owner, workspace.name
        for secret in await self._store.secrets(owner):
            if (secret.tier, secret.workspace) == ("workspace", name):
                await self._store.remove_secret(owner, secret.tier, name, secret.name)
        for key in await self._store.keys(owner):
            if key.scope == name:
                try:
                    await self._store.remove_key(key.id)
                finally:
                    text = f"API key {key.name} was revoked with workspace {name}"
                    self._lifecycle.attachments.end_key(key.id, text)
                if notes is not None:
                    notes(f"revoked API key {key.name}, which was confined to workspace {name}")
        for canvas in await self._store.canvases(owner, name):
            await self._store.remove_canvas(owner, name, canvas.id)
            self._feed.canvas(owner, name, canvas.id)
        await self._store.remove_asks_of(owner, name)
        self._ends.drop_all(owner, name)
        self._feed.asks(owner, name)


def _listed(one: str, many: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    word = one if len(names) == 1 else f"{len(names)} {many}:"
    return f"{word} {', '.join(names[:_SHOWN])}{more}"
