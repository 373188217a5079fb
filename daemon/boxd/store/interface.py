"""Control-plane state: boxes, snapshots, profiles, API keys, workspaces, volumes, settings.

Implementations: `postgres` (real), `memory` (tests of the layers above); both pass
tests/contract/test_control_store.py. Each method is atomic. Each is idempotent for the same
arguments, so that one whose connection broke after the commit may be sent again. Every method
raises boxd.errors.Unavailable when the database does not answer within its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Unpack

    from boxd.model.box import Box, BoxChanges, BoxNotes, BoxState
    from boxd.model.key import ApiKey
    from boxd.model.profile import Profile
    from boxd.model.snapshot import Snapshot
    from boxd.model.volume import Volume


class ControlStore(Protocol):
    """What the daemon remembers."""

    async def start(self) -> None:
        """Connects and brings the schema up to date. Called once, before anything else."""
        ...

    async def close(self) -> None:
        """Ends all connections; no error if never started."""
        ...

    async def add_box(self, box: Box) -> None:
        """Records a box; Conflict when (owner, workspace, name) is taken by another one."""
        ...

    async def box(self, box_id: str) -> Box | None:
        """The box with exactly this id."""
        ...

    async def boxes(self, owner: str) -> list[Box]:
        """All boxes of an owner, oldest first."""
        ...

    async def all_boxes(self) -> list[Box]:
        """Every box of every owner, oldest first."""
        ...

    async def change_state(
        self,
        box_id: str,
        before: BoxState,
        after: BoxState,
        detail: str = "",
        **changes: Unpack[BoxChanges],
    ) -> Box:
        """Compare-and-set of a box's state, which also replaces `detail` and sets `changes`.

        Returns the new box. NotFound when there is no such box; Conflict when it is not in
        `before`, or when the transition table does not allow the change.
        """
        ...

    async def change_box(self, box_id: str, **changes: Unpack[BoxNotes]) -> None:
        """Sets fields of a box. No error if it is gone."""
        ...

    async def remove_box(self, box_id: str) -> None:
        """Forgets a box. No error if it is gone."""
        ...

    async def add_snapshot(self, snapshot: Snapshot) -> None:
        """Records a snapshot; Conflict when there is one of that name of a box of that name."""
        ...

    async def finish_snapshot(self, snapshot_id: str, size_bytes: int) -> None:
        """Makes a snapshot of that size `ready`. No error if it is gone."""
        ...

    async def rename_snapshot(self, snapshot_id: str, name: str) -> None:
        """Gives a snapshot another name; Conflict as `add_snapshot`. No error if it is gone."""
        ...

    async def snapshots(self, owner: str) -> list[Snapshot]:
        """All snapshots of an owner, oldest first, unfinished ones included."""
        ...

    async def all_snapshots(self) -> list[Snapshot]:
        """Every snapshot of every owner, oldest first."""
        ...

    async def remove_snapshot(self, snapshot_id: str) -> None:
        """Forgets a snapshot. No error if it is gone."""
        ...

    async def put_profile(self, owner: str, profile: Profile) -> None:
        """Records a profile of an owner in the place of an older one of its name."""
        ...

    async def profiles(self, owner: str) -> list[Profile]:
        """All profiles of an owner, by name."""
        ...

    async def remove_profile(self, owner: str, name: str) -> None:
        """Forgets a profile. No error if it is gone."""
        ...

    async def add_key(self, key: ApiKey, sha256: bytes) -> None:
        """Records an API key by its digest; Conflict when the owner has one of that name."""
        ...

    async def keys(self, owner: str) -> list[ApiKey]:
        """All API keys of an owner, oldest first, expired ones included."""
        ...

    async def find_key(self, sha256: bytes) -> ApiKey | None:
        """The key with this digest, expired or not."""
        ...

    async def remove_key(self, key_id: str) -> None:
        """Forgets a key. No error if it is gone."""
        ...

    async def touch_key(self, key_id: str, when: datetime) -> None:
        """Records the last use of a key; never moves it back. No error if it is gone."""
        ...

    async def add_workspace(self, owner: str, name: str, created: datetime) -> bool:
        """Records a workspace; False when it was there. The default one is never recorded."""
        ...

    async def workspaces(self, owner: str) -> list[str]:
        """Names of an owner's workspaces, sorted, without the default one."""
        ...

    async def add_volume(self, volume: Volume) -> None:
        """Records a volume; Conflict when (owner, workspace) has another one."""
        ...

    async def find_volume(self, owner: str, workspace: str | None) -> Volume | None:
        """The volume of an owner's workspace (None: the default one)."""
        ...

    async def list_volumes(self, owner: str | None = None) -> list[Volume]:
        """The volumes of an owner, or of all of them, oldest first."""
        ...

    async def remove_volume(self, volume_id: str) -> None:
        """Forgets a volume. No error if it is gone."""
        ...

    async def setting(self, name: str) -> str | None:
        """A setting of the instance."""
        ...

    async def put_setting(self, name: str, value: str) -> None:
        """Sets a setting of the instance."""
        ...
