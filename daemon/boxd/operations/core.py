"""What all families of verbs share: the parts of the service, and the workspace of a call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from boxd.authz import Action, require, workspace_of
from boxd.boxes.allowance import Allowances
from boxd.boxes.expiry import Expiry
from boxd.errors import BadRequest
from boxd.names.jump import UNNAMED_CLI, named, spelled
from boxd.names.words import parse_workspace
from boxd.operations.audits import Audits
from boxd.operations.budget import AtOnce
from boxd.operations.keyuse import LastUses
from boxd.operations.vault import Vault

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import datetime

    from boxd.boxes.allowance import Room
    from boxd.boxes.gate import Gate
    from boxd.boxes.interface import Catalog
    from boxd.boxes.lifecycle import Lifecycle
    from boxd.boxes.quota import Tier
    from boxd.boxes.tiers import Tiers
    from boxd.clock import Clock
    from boxd.config import Address
    from boxd.model.usage import DriveUse
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore
    from boxd.workspaces.drive import Filesystem
    from boxd.workspaces.seal import Sealer


class Drives(Protocol):
    """The drives of all workspaces, for use in this process; see boxd.workspaces.drives."""

    def use(
        self, owner: str, workspace: str | None, *, create: bool
    ) -> AbstractAsyncContextManager[Filesystem | None]:
        """The volume's Filesystem while the context lasts; None: not there and not to be made."""
        ...

    async def usage(self, owner: str) -> dict[str | None, DriveUse]:
        """What each drive of an owner holds; one that was never used is missing. Unavailable."""
        ...

    def closing(self, owner: str, workspace: str) -> AbstractContextManager[None]:
        """Nobody begins to use the drive while the context lasts: Conflict for who wants to."""
        ...

    async def is_empty(self, owner: str, workspace: str) -> bool:
        """Whether no name stands in the drive, or there is none. Unavailable."""
        ...

    async def remove(self, owner: str, workspace: str) -> datetime | None:
        """Removes the drive and all that is in it; no error if there is none. Within `closing`.

        Until when the operator can bring it back; None: it is gone. Conflict while it is used;
        Unavailable: then it can be done again.
        """
        ...

    async def sizes(self) -> dict[str, int]:
        """Bytes that the drives of each owner hold. Unavailable."""
        ...


class Core:
    """The base of every family. `drives` None means that drives are not enabled on this host;
    `tier_of` gives the limits of an owner, `tiers` has who was given which, `gate` who is let in;
    `sealer` encrypts what owners entrust to the service; `ssh_host` is what users type to reach the
    front door, if it has been told.

    Holds no state across awaits but what `LastUses`, `Audits`, `AtOnce` and `Allowances` hold; the
    families add none.
    Critical sections: `_minting` is held between counting an owner's keys, shares, secrets or
    questions and adding one, `_founding` with workspaces that no box makes.
    """

    def __init__(
        self,
        *,
        store: ControlStore,
        lifecycle: Lifecycle,
        catalog: Catalog,
        drives: Drives | None,
        tier_of: Callable[[str], Tier],
        tiers: Tiers,
        gate: Gate,
        clock: Clock,
        sealer: Sealer,
        ssh_host: Address | None = None,
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._feed = lifecycle.feed
        self._ends = lifecycle.ends
        self._catalog = catalog
        self._drives = drives
        self._tier_of = tier_of
        self._tiers = tiers
        self._gate = gate
        self._clock = clock
        self._ssh_host = ssh_host
        self._key_uses = LastUses(store.touch_key, clock)
        self._share_uses = LastUses(store.touch_share, clock)
        self._owner_uses = LastUses(store.touch_account, clock)
        self._minting = asyncio.Lock()
        self._founding = asyncio.Lock()
        self._vault = Vault(store, sealer)
        self._audits = Audits(store, clock)
        self._delegations = AtOnce()
        self._allowances = Allowances()

    def named(self, text: str) -> str:
        """A text for users elsewhere than at the front door, with the front door's name in it."""
        if self._ssh_host is None:
            return spelled(text, UNNAMED_CLI)
        host, port = self._ssh_host.host, self._ssh_host.port
        cli = f"ssh cli@{host}" if port == 22 else f"ssh -p {port} cli@{host}"
        return named(spelled(text, cli), host, port)

    async def close(self) -> None:
        """Waits for what goes on behind requests (bounded by the store's own deadline)."""
        await self._key_uses.close()
        await self._share_uses.close()
        await self._owner_uses.close()

    def seen(self, p: Principal, *, has_something: bool = False) -> None:
        """An owner is here; noted behind the caller.

        Of a stranger nothing is kept, as keys cost nothing, until it `has_something`.
        """
        if p.via == "share":
            return  # that is not the owner
        if has_something:
            self._gate.learn(p.owner)
        if self._gate.knows(p.owner):
            self._owner_uses.touch(p.owner)

    def keeping(self, p: Principal) -> Room:
        """Room for what one call keeps of output while it runs, from its owner's allowance."""
        return self._allowances.room(p.owner)

    def check_admitted(self, p: Principal) -> None:
        """Forbidden when the operator has blocked the owner."""
        self._gate.check_owner(p.owner)

    def came(self, p: Principal, address: str) -> None:
        """Where a principal came from, as soon as it has authenticated; empty: no address."""
        self._lifecycle.sources.came(p.owner, address)

    async def _check_enters(self, p: Principal, name: str) -> None:
        """Forbidden when the workspace is not there and the principal may make none."""
        if name not in await self._store.workspaces(p.owner):
            require(p, Action.CREATE_WORKSPACE)

    async def _ensure_workspace(self, p: Principal, name: str) -> None:
        """Makes a workspace at its first use."""
        async with self._founding:
            present = await self._store.workspaces(p.owner)
            if name in present:
                return
            require(p, Action.CREATE_WORKSPACE)
            self._tier_of(p.owner).check_workspaces(len(present))
            await self._store.add_workspace(p.owner, name, self._clock.now())


def expiry_of(p: Principal) -> Expiry | None:
    """When the credential of a principal ends, and what that is called; None: never."""
    names = {"api_key": "API key", "share": "share link", "cookie": "session of a browser"}
    what = names.get(p.via, "credential")
    return None if p.expires is None else Expiry(p.expires, f"this {what} has expired")


def checked_workspace(p: Principal, ws: str | None) -> str | None:
    """The workspace of a call; Forbidden when it is out of the principal's scope. BadName."""
    return workspace_of(p, None if ws is None else parse_workspace(ws))


def joined_workspace(p: Principal, inside: str | None, ws: str | None) -> str | None:
    """The workspace of a text that may name one itself, and of the call around it."""
    asked = None if ws is None else parse_workspace(ws)
    if inside is not None and asked is not None and inside != asked:
        raise BadRequest(f"the box is asked for in workspace {inside}, and by ws in {asked}")
    return workspace_of(p, inside or asked)
