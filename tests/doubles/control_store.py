"""ControlStore in memory, for tests of the layers above. Passes the contract suite.

No method awaits, so each is atomic on one event loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.errors import Conflict, NotFound
from boxd.model.box import TRANSITIONS
from boxd.model.end import End
from boxd.model.workspace import Workspace
from tests.doubles.control_store_account_keys import MemoryAccountKeys
from tests.doubles.control_store_accounts import MemoryAccounts
from tests.doubles.control_store_canvases import MemoryCanvases
from tests.doubles.control_store_idempotent import MemoryIdempotent
from tests.doubles.control_store_proxy import MemoryProxy
from tests.doubles.control_store_secrets import MemorySecrets
from tests.doubles.control_store_shares import MemoryShares

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Unpack

    from boxd.model.access.key import ApiKey
    from boxd.model.box import Box, BoxChanges, BoxNotes, BoxState
    from boxd.model.profile import Profile
    from boxd.model.snapshot import Snapshot
    from boxd.model.volume import Volume


class MemoryStore(
    MemoryShares,
    MemoryAccounts,
    MemoryAccountKeys,
    MemorySecrets,
    MemoryCanvases,
    MemoryProxy,
    MemoryIdempotent,
):
    """Forgets everything with the process."""

    def __init__(self) -> None:
        super().__init__()
        self._boxes: dict[str, Box] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._profiles: dict[tuple[str, str], Profile] = {}
        self._keys: dict[str, tuple[ApiKey, bytes]] = {}
        self._workspaces: dict[tuple[str, str], Workspace] = {}
        self._volumes: dict[str, Volume] = {}
        self._settings: dict[str, str] = {}

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def ends(self, now: datetime) -> list[End]:
        """See ControlStore."""
        found = [
            End("canvas", one.owner, one.scope, one.id, one.expires)
            for one, _ in self._canvases.values()
            if one.expires is not None
        ]
        found += [
            End("ask", one.owner, one.workspace, one.id, one.expires)
            for one in self._asks.values()
            if one.answer is None
        ]
        return [one for one in found if one.at > now]

    async def add_box(self, box: Box) -> None:
        """See ControlStore."""
        for other in self._boxes.values():
            same_name = (other.owner, other.ref) == (box.owner, box.ref)
            if same_name and other.id != box.id:
                raise Conflict(f"box {box.ref} already exists")
        self._boxes.setdefault(box.id, box)

    async def box(self, box_id: str) -> Box | None:
        """See ControlStore."""
        return self._boxes.get(box_id)

    async def boxes(self, owner: str) -> list[Box]:
        """See ControlStore."""
        return [box for box in await self.all_boxes() if box.owner == owner]

    async def find_boxes(
        self, owner: str, workspace: str | None, name: str, id_prefix: str | None = None
    ) -> list[Box]:
        """See ControlStore."""
        return [
            box
            for box in await self.boxes(owner)
            if (box.workspace, box.name) == (workspace, name)
            or (id_prefix is not None and box.id.startswith(id_prefix))
        ]

    async def all_boxes(self) -> list[Box]:
        """See ControlStore."""
        return sorted(self._boxes.values(), key=lambda box: (box.created, box.id))

    async def change_state(
        self,
        box_id: str,
        before: BoxState,
        after: BoxState,
        detail: str = "",
        **changes: Unpack[BoxChanges],
    ) -> Box:
        """See ControlStore."""
        box = self._boxes.get(box_id)
        if box is None:
            raise NotFound("no such box")
        if box.state is not before or (before, after) not in TRANSITIONS:
            raise Conflict(f"box {box.ref} is {box.state}: it cannot go from {before} to {after}")
        self._boxes[box_id] = replace(box, state=after, detail=detail, **changes)
        return self._boxes[box_id]

    async def change_box(self, box_id: str, **changes: Unpack[BoxNotes]) -> None:
        """See ControlStore."""
        if box_id in self._boxes:
            self._boxes[box_id] = replace(self._boxes[box_id], **changes)

    async def remove_box(self, box_id: str) -> None:
        """See ControlStore."""
        self._boxes.pop(box_id, None)
        self._forget_shares_of(box_id)
        self._forget_proxy_sessions(lambda session: session.box_id == box_id)

    async def add_snapshot(self, snapshot: Snapshot) -> None:
        """See ControlStore."""
        self._check_snapshot_name(snapshot)
        self._snapshots.setdefault(snapshot.id, snapshot)

    async def rename_snapshot(self, snapshot_id: str, name: str) -> None:
        """See ControlStore."""
        if snapshot_id in self._snapshots:
            renamed = replace(self._snapshots[snapshot_id], name=name)
            self._check_snapshot_name(renamed)
            self._snapshots[snapshot_id] = renamed

    async def finish_snapshot(self, snapshot_id: str, size_bytes: int) -> None:
        """See ControlStore."""
        if snapshot_id in self._snapshots:
            self._snapshots[snapshot_id] = replace(
                self._snapshots[snapshot_id], ready=True, size_bytes=size_bytes
            )

    async def snapshots(self, owner: str) -> list[Snapshot]:
        """See ControlStore."""
        return [one for one in await self.all_snapshots() if one.owner == owner]

    async def all_snapshots(self) -> list[Snapshot]:
        """See ControlStore."""
        return sorted(self._snapshots.values(), key=lambda one: (one.created, one.id))

    async def remove_snapshot(self, snapshot_id: str) -> None:
        """See ControlStore."""
        self._snapshots.pop(snapshot_id, None)

    async def put_profile(self, owner: str, profile: Profile) -> None:
        """See ControlStore."""
        self._profiles[owner, profile.name] = profile

    async def profiles(self, owner: str) -> list[Profile]:
        """See ControlStore."""
        return [one for (whose, _), one in sorted(self._profiles.items()) if whose == owner]

    async def remove_profile(self, owner: str, name: str) -> None:
        """See ControlStore."""
        self._profiles.pop((owner, name), None)

    async def add_key(self, key: ApiKey, sha256: bytes) -> None:
        """See ControlStore."""
        for other, _ in self._keys.values():
            if (other.owner, other.name) == (key.owner, key.name) and other.id != key.id:
                raise Conflict(f"an API key named {key.name} already exists")
        self._keys.setdefault(key.id, (key, sha256))

    async def keys(self, owner: str) -> list[ApiKey]:
        """See ControlStore."""
        mine = [key for key, _ in self._keys.values() if key.owner == owner]
        return sorted(mine, key=lambda key: (key.created, key.name))

    async def find_key(self, sha256: bytes, now: datetime) -> ApiKey | None:
        """See ControlStore."""
        good = ((key, stored) for key, stored in self._keys.values() if key.lives(now))
        return {stored: key for key, stored in good}.get(sha256)

    async def remove_key(self, key_id: str) -> None:
        """See ControlStore."""
        self._keys.pop(key_id, None)
        self._forget_proxy_sessions(lambda session: session.key_id == key_id)

    def _key_owner(self, key_id: str) -> str | None:
        return self._keys[key_id][0].owner if key_id in self._keys else None

    async def touch_key(self, key_id: str, when: datetime) -> None:
        """See ControlStore."""
        if key_id in self._keys:
            key, sha256 = self._keys[key_id]
            latest = when if key.last_used is None else max(when, key.last_used)
            self._keys[key_id] = (replace(key, last_used=latest), sha256)

    async def add_workspace(self, owner: str, name: str, created: datetime) -> bool:
        """See ControlStore."""
        new = (owner, name) not in self._workspaces
        self._workspaces.setdefault((owner, name), Workspace(owner, name, created))
        return new

    async def workspaces(self, owner: str) -> list[str]:
        """See ControlStore."""
        return [one.name for one in await self.list_workspaces(owner)]

    async def list_workspaces(self, owner: str) -> list[Workspace]:
        """See ControlStore."""
        mine = [one for one in self._workspaces.values() if one.owner == owner]
        return sorted(mine, key=lambda one: one.name)

    async def set_workspace_profile(self, owner: str, name: str, profile: str | None) -> None:
        """See ControlStore."""
        if (owner, name) in self._workspaces:
            present = self._workspaces[owner, name]
            self._workspaces[owner, name] = replace(present, profile=profile)

    async def remove_workspace(self, owner: str, name: str) -> None:
        """See ControlStore."""
        self._workspaces.pop((owner, name), None)

    async def add_volume(self, volume: Volume) -> None:
        """See ControlStore."""
        present = await self.find_volume(volume.owner, volume.workspace)
        if present is not None and present.id != volume.id:
            raise Conflict("the workspace already has a volume")
        self._volumes.setdefault(volume.id, volume)

    async def find_volume(self, owner: str, workspace: str | None) -> Volume | None:
        """See ControlStore."""
        for volume in self._volumes.values():
            if (volume.owner, volume.workspace, volume.trashed_until) == (owner, workspace, None):
                return volume
        return None

    async def list_volumes(self, owner: str | None = None) -> list[Volume]:
        """See ControlStore."""
        chosen = [one for one in self._volumes.values() if owner in (None, one.owner)]
        return sorted(chosen, key=lambda one: (one.created, one.id))

    async def remove_volume(self, volume_id: str) -> None:
        """See ControlStore."""
        self._volumes.pop(volume_id, None)

    async def setting(self, name: str) -> str | None:
        """See ControlStore."""
        return self._settings.get(name)

    async def put_setting(self, name: str, value: str) -> None:
        """See ControlStore."""
        self._settings[name] = value

    def _check_snapshot_name(self, snapshot: Snapshot) -> None:
        for other in self._snapshots.values():
            same_name = (other.owner, other.ref, other.name) == (
                snapshot.owner,
                snapshot.ref,
                snapshot.name,
            )
            if same_name and other.id != snapshot.id:
                raise Conflict(f"snapshot {snapshot.name} of box {snapshot.ref} already exists")

    async def trash_volume(self, volume_id: str, until: datetime) -> None:
        """See ControlStore."""
        volume = self._volumes.get(volume_id)
        if volume is not None and volume.trashed_until is None:
            self._volumes[volume_id] = replace(volume, trashed_until=until)

    async def restore_volume(self, volume_id: str, workspace: str | None) -> None:
        """See ControlStore."""
        volume = self._volumes.get(volume_id)
        if volume is None:
            raise NotFound("no such volume")
        present = await self.find_volume(volume.owner, workspace)
        if present is not None and present.id != volume_id:
            raise Conflict("the workspace already has a volume")
        self._volumes[volume_id] = replace(volume, trashed_until=None, workspace=workspace)
