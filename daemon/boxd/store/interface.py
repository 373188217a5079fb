"""Control-plane state: what the daemon remembers, a group of tables after the other.

Implementations: `postgres` (real), `memory` (tests of the layers above); both pass
tests/contract/test_control_store.py. Each method is atomic. Each is idempotent for the same
arguments, so that one whose connection broke after the commit may be sent again. Every method
raises boxd.errors.Unavailable when the database does not answer within its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Unpack

    from boxd.model.account import Account, Audit
    from boxd.model.ask import Ask
    from boxd.model.box import Box, BoxChanges, BoxNotes, BoxState
    from boxd.model.canvas import Canvas
    from boxd.model.end import End
    from boxd.model.key import ApiKey
    from boxd.model.profile import Profile
    from boxd.model.proxy import ProxySession
    from boxd.model.secret import Agent, StoredSecret, Tier
    from boxd.model.share import Share
    from boxd.model.snapshot import Snapshot
    from boxd.model.volume import Volume
    from boxd.model.workspace import Workspace


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

    async def boxes_meant(
        self, owner: str, workspace: str | None, name: str, id_prefix: str | None = None
    ) -> list[Box]:
        """The owner's box of that name in the workspace, and those, wherever they are, whose ids
        begin with `id_prefix`; oldest first."""
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
        """Forgets a box, its shares and its proxy sessions. No error if it is gone."""
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

    async def find_key(self, sha256: bytes, now: datetime) -> ApiKey | None:
        """The key with this digest that lasts beyond `now`; to find an expired one takes exactly as
        long as to find none."""
        ...

    async def remove_key(self, key_id: str) -> None:
        """Forgets a key and its proxy sessions. No error if it is gone."""
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

    async def list_workspaces(self, owner: str) -> list[Workspace]:
        """An owner's workspaces, by name, without the default one."""
        ...

    async def set_workspace_profile(self, owner: str, name: str, profile: str | None) -> None:
        """Points a workspace at a profile; None: at none. No error if it is gone."""
        ...

    async def remove_workspace(self, owner: str, name: str) -> None:
        """Forgets a workspace, and nothing of what is in it. No error if it is gone."""
        ...

    async def add_volume(self, volume: Volume) -> None:
        """Records a volume; Conflict when (owner, workspace) has another one in use."""
        ...

    async def find_volume(self, owner: str, workspace: str | None) -> Volume | None:
        """The volume of an owner's workspace (None: the default one) that is in use."""
        ...

    async def list_volumes(self, owner: str | None = None) -> list[Volume]:
        """The volumes of an owner, or of all of them, oldest first, those in the trash included."""
        ...

    async def trash_volume(self, volume_id: str, until: datetime) -> None:
        """Puts a volume into the trash; no error if it is gone, or there already."""
        ...

    async def restore_volume(self, volume_id: str, workspace: str | None) -> None:
        """Takes a volume out of the trash, for a workspace.

        NotFound when it is gone; Conflict when the workspace has another one in use.
        """
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

    async def add_share(self, share: Share, sha256: bytes) -> None:
        """Records a share by the digest of its token; NotFound when its box is gone."""
        ...

    async def shares(self, owner: str) -> list[Share]:
        """All shares of an owner, oldest first, expired ones included."""
        ...

    async def find_share(self, sha256: bytes) -> Share | None:
        """The share with this digest, expired or not."""
        ...

    async def remove_share(self, share_id: str) -> None:
        """Forgets a share. No error if it is gone."""
        ...

    async def touch_share(self, share_id: str, when: datetime) -> None:
        """Records the last use of a share; never moves it back. No error if it is gone."""
        ...

    async def add_proxy_session(self, session: ProxySession, sha256: bytes) -> None:
        """Records a browser's session by the digest of its cookie.

        NotFound when its box or its key is gone.
        """
        ...

    async def find_proxy_session(self, sha256: bytes) -> ProxySession | None:
        """The session with this digest, expired or not, while its box and its key are there and
        its owner's."""
        ...

    async def trim_proxy_sessions(self, owner: str, now: datetime, keep: int) -> None:
        """Forgets the sessions of an owner that had expired `now`, and all others but the newest
        `keep`."""
        ...

    async def accounts(self) -> list[Account]:
        """All owners on whom something is recorded, by fingerprint."""
        ...

    async def set_tier(self, owner: str, tier: str | None) -> None:
        """Gives an owner the limits of a tier; None: of the default one."""
        ...

    async def set_blocked(self, owner: str, since: datetime | None) -> None:
        """Blocks an owner; None: lets it in again."""
        ...

    async def touch_account(self, owner: str, when: datetime) -> None:
        """Records when an owner was seen last; never moves it back."""
        ...

    async def add_audit(self, entry: Audit) -> None:
        """Records what an administrator is about to do."""
        ...

    async def finish_audit(self, audit_id: str, status: int, owners: Sequence[str] = ()) -> None:
        """Records how it ended, and whom it was about. No error if it is not there."""
        ...

    async def audits(self, limit: int, owner: str | None = None) -> list[Audit]:
        """The last `limit` entries, newest first: all, or those about an owner."""
        ...

    async def put_secret(self, secret: StoredSecret) -> None:
        """Records a secret in the place of an older one of its name there."""
        ...

    async def secrets(self, owner: str) -> list[StoredSecret]:
        """All secrets of an owner, by tier, workspace (the default one first) and name."""
        ...

    async def remove_secret(self, owner: str, tier: Tier, workspace: str | None, name: str) -> None:
        """Forgets a secret. No error if it is gone."""
        ...

    async def put_agent(self, agent: Agent) -> None:
        """Records an owner's agent in the place of an older one."""
        ...

    async def agent(self, owner: str) -> Agent | None:
        """The agent of an owner."""
        ...

    async def remove_agent(self, owner: str) -> None:
        """Forgets the agent of an owner. No error if there is none."""
        ...

    async def add_ask(self, ask: Ask) -> None:
        """Records a question."""
        ...

    async def asks(self, owner: str) -> list[Ask]:
        """All questions to an owner, oldest first, answered and expired ones included."""
        ...

    async def answer_ask(self, ask_id: str, answer: str, when: datetime) -> Ask:
        """Records the answer to a question, and returns it.

        NotFound when it is gone; Conflict when it has an answer, or had expired at `when`.
        """
        ...

    async def remove_asks(self, before: datetime) -> None:
        """Forgets all questions that had expired `before` then."""
        ...

    async def remove_asks_of(self, owner: str, workspace: str) -> None:
        """Forgets all questions that belong to a workspace; no error if there are none."""
        ...

    async def ends(self, now: datetime) -> list[End]:
        """All canvases and open questions, of every owner, that end by themselves after `now`."""
        ...

    async def put_canvas(self, canvas: Canvas, content: str) -> None:
        """Records a canvas in the place of an older one of its id in its scope."""
        ...

    async def canvases(self, owner: str, scope: str | None) -> list[Canvas]:
        """The canvases of an owner in a scope, by id, expired ones included."""
        ...

    async def canvas(
        self, owner: str, scope: str | None, canvas_id: str
    ) -> tuple[Canvas, str] | None:
        """A canvas and its content, expired or not."""
        ...

    async def remove_canvas(self, owner: str, scope: str | None, canvas_id: str) -> None:
        """Forgets a canvas. No error if it is gone."""
        ...

    async def remove_canvases(self, before: datetime) -> None:
        """Forgets all canvases that had expired by then."""
        ...
