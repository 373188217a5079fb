"""Workspaces: each has its own box names, drive, secrets and canvases."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import Conflict, NotFound
from boxd.model.progress import SILENT
from boxd.model.workspace import Workspace, WorkspaceView
from boxd.names.words import parse_workspace

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.clock import Clock
    from boxd.model.box import Box
    from boxd.model.progress import Progress
    from boxd.model.snapshot import Snapshot
    from boxd.model.usage import DriveUse
    from boxd.operations.profiles import ProfileOperations
    from boxd.operations.shared.drives import Drives
    from boxd.operations.shared.workspace_registry import WorkspaceRegistry
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

_SHOWN = 5
"""Names that an error message lists."""


class WorkspaceOperations:
    """Creates, lists, changes and removes workspaces. Holds no state.

    `drives` None: drives are not enabled on this host.
    """

    def __init__(
        self,
        store: ControlStore,
        registry: WorkspaceRegistry,
        profiles: ProfileOperations,
        lifecycle: Lifecycle,
        drives: Drives | None,
        clock: Clock,
    ) -> None:
        self._store = store
        self._registry = registry
        self._profiles = profiles
        self._lifecycle = lifecycle
        self._drives = drives
        self._clock = clock

    async def list_workspaces(self, p: Principal) -> list[WorkspaceView]:
        """Return the workspaces of the owner, the default one first.

        A scoped credential gets its own workspace only.
        """
        require(p, Action.LIST_WORKSPACES)
        default = Workspace(p.owner, "", self._clock.now())
        workspaces = [default, *await self._store.list_workspaces(p.owner)]
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
            for one in workspaces
            if p.scope in (None, one.name)
        ]

    async def drive_usage(self, p: Principal) -> dict[str | None, DriveUse]:
        """Return the use of each drive that the principal can read, without unused drives."""
        require(p, Action.READ_DRIVE)
        if self._drives is None:
            return {}
        usage = await self._drives.usage(p.owner)
        return {name: use for name, use in usage.items() if p.scope in (None, name)}

    async def create_workspace(self, p: Principal, name: str) -> WorkspaceView:
        """Create a workspace. Raises Conflict if it exists, QuotaExceeded."""
        require(p, Action.CREATE_WORKSPACE)
        name = parse_workspace(name)
        if name in await self._store.workspaces(p.owner):
            raise Conflict(f"workspace {name} already exists; see: ws ls")
        await self._registry.ensure(p, name)
        return WorkspaceView(name, 0, None, None, self._clock.now())

    async def set_workspace_profile(
        self, p: Principal, name: str, profile: str | None
    ) -> WorkspaceView:
        """Set the profile of new boxes in a workspace whose spec names no image; None: no profile.

        Existing boxes do not change. Raises NotFound.
        """
        require(p, Action.CHANGE_PROFILE)
        workspace = await self._workspace(p, name)
        profile_name = (
            None if profile is None else (await self._profiles.show_profile(p, profile)).name
        )
        await self._store.set_workspace_profile(p.owner, workspace.name, profile_name)
        views = {view.name: view for view in await self.list_workspaces(p)}
        if workspace.name not in views:
            raise NotFound(f"workspace {workspace.name} was removed")
        return replace(views[workspace.name], profile=profile_name)

    async def remove_workspace(
        self,
        p: Principal,
        name: str,
        *,
        force: bool = False,
        progress: Progress = SILENT,
    ) -> Workspace:
        """Remove a workspace with its secrets, its canvases and the keys with its scope.

        Raises Conflict while it contains boxes, snapshots or files; `force` removes these first.
        Raises NotFound. A call that fails can be repeated.
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
            await self._report_broken_profiles(p, snapshots, progress)
            if self._drives is not None:
                until = await self._drives.remove(p.owner, workspace.name)
                if until is not None:
                    restorable_until = until.strftime("%Y-%m-%d %H:%M")
                    progress.note(
                        f"the operator can restore its files until {restorable_until} UTC"
                    )
            await self._revoke(workspace, progress)
            boxes, _ = await self._inside(workspace)
            if boxes:
                raise Conflict(f"box {boxes[0].ref} was created at the same time; try again")
            await self._store.remove_workspace(p.owner, workspace.name)
        return workspace

    def _closing(self, workspace: Workspace) -> AbstractContextManager[None]:
        if self._drives is None:
            return nullcontext()
        return self._drives.closing(workspace.owner, workspace.name)

    async def _workspace(self, p: Principal, name: str) -> Workspace:
        name = parse_workspace(name)
        await self._registry.check_exists(p, name)
        for one in await self._store.list_workspaces(p.owner):
            if one.name == name:
                return one
        raise NotFound(f"workspace {name} was removed")

    async def _inside(self, workspace: Workspace) -> tuple[list[Box], list[Snapshot]]:
        """Return the boxes and snapshots of a workspace, incomplete snapshots included."""
        owner, name = workspace.owner, workspace.name
        boxes = [one for one in await self._store.boxes(owner) if one.workspace == name]
        snapshots = [one for one in await self._store.snapshots(owner) if one.workspace == name]
        return boxes, snapshots

    async def _check_unused(
        self, workspace: Workspace, boxes: list[Box], snapshots: list[Snapshot]
    ) -> None:
        """Raise Conflict, with the contents, if the workspace is not empty."""
        contents = []
        if boxes:
            contents.append(_listed("box", "boxes", [box.name for box in boxes]))
        if snapshots:
            names = [f"{one.box_name}@{one.name}" for one in snapshots]
            contents.append(_listed("snapshot", "snapshots", names))
        drives = self._drives
        if drives is not None and not await drives.is_empty(workspace.owner, workspace.name):
            contents.append("files on its drive")
        if contents:
            raise Conflict(
                f"workspace {workspace.name} has {' and '.join(contents)}; "
                f"to remove all of it: ws rm {workspace.name} --force"
            )

    async def _report_broken_profiles(
        self, p: Principal, removed: list[Snapshot], progress: Progress
    ) -> None:
        """Report the profiles that no longer work because their snapshots were removed."""
        ids = {snapshot.id for snapshot in removed}
        for profile in await self._store.profiles(p.owner):
            if profile.snapshot in ids:
                progress.note(
                    f"profile {profile.name} was built from {profile.built_from}, which is removed"
                )

    async def _revoke(self, workspace: Workspace, progress: Progress) -> None:
        """Remove objects that a new workspace of the same name would inherit.

        These are secrets, canvases, questions and keys with its scope.
        """
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
                progress.note(f"revoked API key {key.name}, whose scope was workspace {name}")
        for canvas in await self._store.canvases(owner, name):
            await self._store.remove_canvas(owner, name, canvas.id)
            self._lifecycle.feed.canvas(owner, name, canvas.id)
        await self._store.remove_asks_of(owner, name)
        self._lifecycle.expiry_notifier.drop_all(owner, name)
        self._lifecycle.feed.asks(owner, name)


def _listed(one: str, many: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    word = one if len(names) == 1 else f"{len(names)} {many}:"
    return f"{word} {', '.join(names[:_SHOWN])}{more}"
