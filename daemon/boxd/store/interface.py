"""The control store: the persistent state of the daemon.

There are two implementations: `postgres`, and one in memory for tests of the layers above. Both
pass the contract tests in tests/contract. Each method is atomic, and idempotent for the same
arguments. After a lost connection it may run again, even if the first run was committed. Every
method raises boxd.errors.Unavailable when the database does not answer within its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Unpack

    from boxd.model.access.account_key import AccountKey
    from boxd.model.access.idempotent import IdempotentRequest
    from boxd.model.access.key import ApiKey
    from boxd.model.access.proxy import ProxySession
    from boxd.model.access.share import Share
    from boxd.model.account import Account, Audit
    from boxd.model.ask import Ask
    from boxd.model.box import Box, BoxChanges, BoxNotes, BoxState
    from boxd.model.canvas import Canvas
    from boxd.model.end import End
    from boxd.model.profile import Profile
    from boxd.model.secret import Agent, StoredSecret, Tier
    from boxd.model.snapshot import Snapshot
    from boxd.model.volume import Volume
    from boxd.model.workspace import Workspace


class ControlStore(Protocol):
    """The persistent state of the daemon, one section per group of tables."""

    async def start(self) -> None:
        """Connect and migrate the schema. Call this once, before any other method."""
        ...

    async def close(self) -> None:
        """Close all connections. No error if the store was never started."""
        ...

    # --- boxes ---------------------------------------------------------------------------

    async def add_box(self, box: Box) -> None:
        """Add a box. Raises Conflict if another box has the same owner, workspace and name."""
        ...

    async def box(self, box_id: str) -> Box | None:
        """Return the box with this full id."""
        ...

    async def boxes(self, owner: str) -> list[Box]:
        """Return all boxes of an owner, oldest first."""
        ...

    async def find_boxes(
        self, owner: str, workspace: str | None, name: str, id_prefix: str | None = None
    ) -> list[Box]:
        """Return the owner's boxes that match a name or the start of an id, oldest first.

        The name matches in `workspace` only; `id_prefix` matches in all workspaces.
        """
        ...

    async def all_boxes(self) -> list[Box]:
        """Return all boxes of all owners, oldest first."""
        ...

    async def change_state(
        self,
        box_id: str,
        before: BoxState,
        after: BoxState,
        detail: str = "",
        **changes: Unpack[BoxChanges],
    ) -> Box:
        """Change a box's state from `before` to `after`, replace `detail`, and set `changes`.

        Returns the changed box. Raises NotFound if the box does not exist; Conflict if its state is
        not `before`, or if the transition table does not allow the change.
        """
        ...

    async def change_box(self, box_id: str, **changes: Unpack[BoxNotes]) -> None:
        """Set fields of a box. No error if it does not exist."""
        ...

    async def remove_box(self, box_id: str) -> None:
        """Delete a box, its shares and its proxy sessions. No error if it does not exist."""
        ...

    # --- snapshots and profiles ----------------------------------------------------------

    async def add_snapshot(self, snapshot: Snapshot) -> None:
        """Add a snapshot. Raises Conflict if a box of this name has a snapshot of this name."""
        ...

    async def finish_snapshot(self, snapshot_id: str, size_bytes: int) -> None:
        """Mark a snapshot as `ready` and set its size. No error if it does not exist."""
        ...

    async def rename_snapshot(self, snapshot_id: str, name: str) -> None:
        """Rename a snapshot. Raises Conflict as `add_snapshot`. No error if it does not exist."""
        ...

    async def snapshots(self, owner: str) -> list[Snapshot]:
        """Return all snapshots of an owner, oldest first, including unfinished ones."""
        ...

    async def all_snapshots(self) -> list[Snapshot]:
        """Return all snapshots of all owners, oldest first."""
        ...

    async def remove_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot. No error if it does not exist."""
        ...

    async def put_profile(self, owner: str, profile: Profile) -> None:
        """Add a profile of an owner, or replace the one with the same name."""
        ...

    async def profiles(self, owner: str) -> list[Profile]:
        """Return all profiles of an owner, sorted by name."""
        ...

    async def remove_profile(self, owner: str, name: str) -> None:
        """Delete a profile. No error if it does not exist."""
        ...

    # --- API keys ------------------------------------------------------------------------

    async def add_key(self, key: ApiKey, sha256: bytes) -> None:
        """Add an API key by its digest. Raises Conflict if the owner has a key of this name."""
        ...

    async def keys(self, owner: str) -> list[ApiKey]:
        """Return all API keys of an owner, oldest first, including expired ones."""
        ...

    async def find_key(self, sha256: bytes, now: datetime) -> ApiKey | None:
        """Return the key with this digest if it expires after `now`.

        The time does not reveal whether an expired key exists.
        """
        ...

    async def remove_key(self, key_id: str) -> None:
        """Delete a key and its proxy sessions. No error if it does not exist."""
        ...

    async def touch_key(self, key_id: str, when: datetime) -> None:
        """Set the last use of a key, never to an earlier time. No error if it does not exist."""
        ...

    # --- workspaces and volumes ----------------------------------------------------------

    async def add_workspace(self, owner: str, name: str, created: datetime) -> bool:
        """Add a workspace; return False if it exists. The default workspace has no row."""
        ...

    async def workspaces(self, owner: str) -> list[str]:
        """Return the names of an owner's workspaces, sorted, without the default one."""
        ...

    async def list_workspaces(self, owner: str) -> list[Workspace]:
        """Return an owner's workspaces, sorted by name, without the default one."""
        ...

    async def set_workspace_profile(self, owner: str, name: str, profile: str | None) -> None:
        """Set the profile of a workspace; None: no profile. No error if it does not exist."""
        ...

    async def remove_workspace(self, owner: str, name: str) -> None:
        """Delete a workspace but not its contents. No error if it does not exist."""
        ...

    async def add_volume(self, volume: Volume) -> None:
        """Add a volume. Raises Conflict if the owner's workspace has another volume in use."""
        ...

    async def find_volume(self, owner: str, workspace: str | None) -> Volume | None:
        """Return the volume in use of an owner's workspace; None: the default workspace."""
        ...

    async def list_volumes(self, owner: str | None = None) -> list[Volume]:
        """Return the volumes of an owner, or of all owners, oldest first, including the trash."""
        ...

    async def trash_volume(self, volume_id: str, until: datetime) -> None:
        """Move a volume to the trash. No error if it does not exist or is already there."""
        ...

    async def restore_volume(self, volume_id: str, workspace: str | None) -> None:
        """Move a volume from the trash to a workspace.

        Raises NotFound if it does not exist; Conflict if the workspace has another volume in use.
        """
        ...

    async def remove_volume(self, volume_id: str) -> None:
        """Delete a volume. No error if it does not exist."""
        ...

    # --- settings ------------------------------------------------------------------------

    async def setting(self, name: str) -> str | None:
        """Return a setting of the installation."""
        ...

    async def put_setting(self, name: str, value: str) -> None:
        """Set a setting of the installation."""
        ...

    # --- shares --------------------------------------------------------------------------

    async def add_share(self, share: Share, sha256: bytes) -> None:
        """Add a share by the digest of its token. Raises NotFound if its box does not exist."""
        ...

    async def shares(self, owner: str) -> list[Share]:
        """Return all shares of an owner, oldest first, including expired ones."""
        ...

    async def find_share(self, sha256: bytes) -> Share | None:
        """Return the share with this digest, even if it has expired."""
        ...

    async def remove_share(self, share_id: str) -> None:
        """Delete a share. No error if it does not exist."""
        ...

    async def touch_share(self, share_id: str, when: datetime) -> None:
        """Set the last use of a share, never to an earlier time. No error if it does not exist."""
        ...

    # --- proxy sessions ------------------------------------------------------------------

    async def add_proxy_session(self, session: ProxySession, sha256: bytes) -> None:
        """Add a browser's session by the digest of its cookie.

        Raises NotFound if its box or its key does not exist.
        """
        ...

    async def find_proxy_session(self, sha256: bytes) -> ProxySession | None:
        """Return the session with this digest, even if it has expired.

        Returns None unless its box and its key exist and belong to its owner.
        """
        ...

    async def trim_proxy_sessions(self, owner: str, now: datetime, keep: int) -> None:
        """Delete the owner's sessions that have expired at `now`.

        Of the other sessions, delete all except the newest `keep`.
        """
        ...

    # --- requests with an idempotency key -------------------------------------------------

    async def start_request(self, request: IdempotentRequest) -> IdempotentRequest:
        """Add a request, unless one with its key exists; return the one that exists now.

        The caller has started the request if the result has its `attempt`.
        """
        ...

    async def finish_request(self, request: IdempotentRequest, status: int, sealed: bytes) -> None:
        """Set status and response of this attempt. No error if it does not exist."""
        ...

    async def drop_request(self, request: IdempotentRequest) -> None:
        """Delete this attempt, so that its key is free again. No error if it does not exist."""
        ...

    async def trim_requests(self, owner: str, before: datetime, keep: int) -> None:
        """Delete the owner's requests that started before a time, and all but the last `keep`."""
        ...

    # --- accounts and audit --------------------------------------------------------------

    async def accounts(self) -> list[Account]:
        """Return all owners that have an account row, sorted by fingerprint."""
        ...

    async def set_tier(self, owner: str, tier: str | None) -> None:
        """Set the tier of an owner's limits; None: the default tier."""
        ...

    async def set_blocked(self, owner: str, since: datetime | None) -> None:
        """Block an owner since this time; None: unblock the owner."""
        ...

    async def touch_account(self, owner: str, when: datetime) -> None:
        """Set when an owner was last seen, never to an earlier time."""
        ...

    async def account(self, owner: str) -> Account:
        """Return the account of an owner; one without facts if it has no row."""
        ...

    async def set_account_name(self, owner: str, name: str | None) -> None:
        """Set the display name of an account; None: it has none."""
        ...

    async def owns_anything(self, owner: str) -> bool:
        """Return whether an owner has an object, a linked key or a recovery code.

        Facts about the account itself, such as its tier, do not count.
        """
        ...

    async def account_keys(self, owner: str | None = None) -> list[AccountKey]:
        """Return the SSH keys of an account, or of all, oldest first, including removed ones.

        A first key that is the only one may have no row.
        """
        ...

    async def add_account_key(
        self, key: AccountKey, first: AccountKey, code: bytes | None = None
    ) -> None:
        """Link a key to an account, and add the account's `first` key if it has no row.

        `code`: the digest of a recovery code of the account, which is deleted. Raises NotFound if
        the code does not exist; Conflict if the key has a row, if it owns anything itself, or if
        the account has another key of its name in use.
        """
        ...

    async def remove_account_key(self, owner: str, fingerprint: str, when: datetime) -> None:
        """Mark a key of an account as removed. No error if it was removed before.

        Raises Conflict if it is the only key in use; NotFound if the account has no such key.
        """
        ...

    async def touch_account_key(self, fingerprint: str, when: datetime) -> None:
        """Set the last use of a key, never to an earlier time. No error if it has no row."""
        ...

    async def put_recovery_codes(
        self, owner: str, digests: Sequence[bytes], created: datetime
    ) -> None:
        """Replace the recovery codes of an account."""
        ...

    async def recovery_codes(self, owner: str) -> int:
        """Return the number of unused recovery codes of an account."""
        ...

    async def find_recovery_code(self, sha256: bytes) -> str | None:
        """Return the account of the recovery code with this digest."""
        ...

    async def add_audit(self, entry: Audit) -> None:
        """Add an entry about a command, before the administrator's command runs."""
        ...

    async def finish_audit(self, audit_id: str, status: int, owners: Sequence[str] = ()) -> None:
        """Set the exit status and the affected owners. No error if the entry does not exist."""
        ...

    async def audits(self, limit: int, owner: str | None = None) -> list[Audit]:
        """Return the last `limit` entries, newest first; `owner`: only those about this owner."""
        ...

    # --- secrets, agents and questions ---------------------------------------------------

    async def put_secret(self, secret: StoredSecret) -> None:
        """Add a secret, or replace the one with the same tier, workspace and name."""
        ...

    async def secrets(self, owner: str) -> list[StoredSecret]:
        """Return an owner's secrets by tier, workspace (the default one first) and name."""
        ...

    async def remove_secret(self, owner: str, tier: Tier, workspace: str | None, name: str) -> None:
        """Delete a secret. No error if it does not exist."""
        ...

    async def put_agent(self, agent: Agent) -> None:
        """Set or replace the agent program of an owner."""
        ...

    async def agent(self, owner: str) -> Agent | None:
        """Return the agent program of an owner."""
        ...

    async def remove_agent(self, owner: str) -> None:
        """Delete the agent program of an owner. No error if there is none."""
        ...

    async def add_ask(self, ask: Ask) -> None:
        """Add a question."""
        ...

    async def asks(self, owner: str) -> list[Ask]:
        """Return all questions to an owner, oldest first, including answered and expired ones."""
        ...

    async def answer_ask(self, ask_id: str, answer: str, when: datetime) -> Ask:
        """Set the answer to a question, and return the question.

        Raises NotFound if it does not exist; Conflict if it is answered or has expired at `when`.
        """
        ...

    async def remove_asks(self, before: datetime) -> None:
        """Delete all questions that expired before this time."""
        ...

    async def remove_asks_of(self, owner: str, workspace: str) -> None:
        """Delete all questions of a workspace. No error if there are none."""
        ...

    async def ends(self, now: datetime) -> list[End]:
        """Return the expiry of all owners' canvases and open questions that expire after `now`."""
        ...

    # --- canvases ------------------------------------------------------------------------

    async def put_canvas(self, canvas: Canvas, content: str) -> None:
        """Add a canvas, or replace the one with the same id in its scope."""
        ...

    async def canvases(self, owner: str, scope: str | None) -> list[Canvas]:
        """Return an owner's canvases in a scope, sorted by id, including expired ones."""
        ...

    async def canvas(
        self, owner: str, scope: str | None, canvas_id: str
    ) -> tuple[Canvas, str] | None:
        """Return a canvas and its content, even if it has expired."""
        ...

    async def remove_canvas(self, owner: str, scope: str | None, canvas_id: str) -> None:
        """Delete a canvas. No error if it does not exist."""
        ...

    async def remove_canvases(self, before: datetime) -> None:
        """Delete all canvases that have expired at this time."""
        ...
