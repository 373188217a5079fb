"""The verbs of the service. Every surface calls only this; what it may is decided in authz.

Holds no state across awaits beside `_touched`, which is read and written without an await between.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Protocol

from boxd.authz import Action, Target, require, workspace_of
from boxd.errors import (
    Ambiguous,
    BadRequest,
    BoxdError,
    InvalidKey,
    NotFound,
    Unavailable,
    Unsupported,
)
from boxd.model.key import ApiKey
from boxd.model.view import BoxView, NextAct, view_box
from boxd.names.reference import parse_reference
from boxd.names.spec import parse_spec
from boxd.names.words import parse_key_name, parse_workspace, shown
from boxd.principal import Principal
from boxd.secret import Secret, digest, random_hex

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.interface import Catalog
    from boxd.boxes.lifecycle import Attachment, Lifecycle
    from boxd.boxes.quota import Tier
    from boxd.clock import Clock
    from boxd.model.box import Box
    from boxd.model.catalog import Flavor, Image
    from boxd.names.spec import BoxSpec
    from boxd.store.interface import ControlStore
    from boxd.workspaces.drive import Filesystem

__all__ = ["BoxView", "NextAct", "Operations"]

KEY_PREFIX = "svc_"
MAX_PRESENTED = 4096
"""Bytes of a presented key that are looked at."""
TOUCH_INTERVAL = timedelta(minutes=1)
"""`last_used` of a key is written at most this often."""
_CANDIDATES = 10

_log = logging.getLogger(__name__)


class Drives(Protocol):
    """Filesystems of volumes for use in this process; see boxd.workspaces.pool."""

    def use(
        self, owner: str, workspace: str | None, *, create: bool
    ) -> AbstractAsyncContextManager[Filesystem | None]:
        """The volume's Filesystem while the context lasts; None: not there and not to be made."""
        ...


class Operations:
    """See the module. `drives` None means that drives are not enabled on this host."""

    def __init__(
        self,
        *,
        store: ControlStore,
        lifecycle: Lifecycle,
        catalog: Catalog,
        drives: Drives | None,
        tier: Tier,
        clock: Clock,
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._catalog = catalog
        self._drives = drives
        self._tier = tier
        self._clock = clock
        self._touched: dict[str, float] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits for what goes on behind requests (bounded by the store's own deadline)."""
        await asyncio.gather(*self._background)

    async def list_boxes(
        self, p: Principal, ws: str | None = None, *, everywhere: bool = False
    ) -> list[BoxView]:
        """The boxes of one workspace (None: the credential's default), or `everywhere` it may."""
        require(p, Action.LIST_BOXES)
        workspace = _checked_workspace(p, ws)
        boxes = await self._visible(p)
        if not everywhere or ws is not None:
            boxes = [box for box in boxes if box.workspace == workspace]
        return [self._view(box) for box in boxes]

    async def resolve(self, p: Principal, ref: str, ws: str | None = None) -> Box:
        """The one box that a reference means.

        Raises BadName, NotFound (also for what belongs to others), Forbidden for a workspace out
        of scope, Ambiguous naming the candidates.
        """
        require(p, Action.SHOW_BOX)
        reference = parse_reference(ref)
        workspace = _joined_workspace(p, reference.workspace, ws)
        boxes = await self._visible(p)
        found = [
            box
            for box in boxes
            if (box.workspace == workspace and box.name == reference.name)
            or (reference.id_prefix is not None and box.id.startswith(reference.id_prefix))
        ]
        if not found:
            raise NotFound(f"no box {shown(str(reference))}; see: ls")
        if len(found) > 1:
            raise Ambiguous(_candidates(str(reference), found))
        return found[0]

    async def up(self, p: Principal, spec: str, ws: str | None = None) -> BoxView:
        """Creates the box of a spec, or starts it, and has it run without an attachment."""
        box_spec, workspace = await self._creatable(p, spec, ws, anonymous=False)
        return self._view(await self._lifecycle.up(p.owner, workspace, box_spec))

    async def remove(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Destroys a box, whatever holds it; returns what it was."""
        require(p, Action.REMOVE_BOX)
        box = await self.resolve(p, ref, ws)
        view = self._view(box)
        await self._lifecycle.remove(box)
        return view

    async def suspend(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Memory and processes of a box to disk. Unsupported where the backend cannot."""
        raise await self._no_suspend(p, ref, ws)

    async def resume(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Undoes `suspend`. Unsupported where the backend cannot."""
        raise await self._no_suspend(p, ref, ws)

    @asynccontextmanager
    async def attach(
        self,
        p: Principal,
        target: str,
        ws: str | None = None,
        *,
        kind: Literal["spec", "reference"],
        why: str,
        notes: Callable[[str], None] | None = None,
    ) -> AsyncIterator[Attachment]:
        """Holds a running box, with its drive in it, while the context lasts.

        A `spec` creates the box when it is not there, a `reference` never does; both wake it.
        `notes` gets lines for people. Raises InvalidKey inside the context when the key that
        opened it is revoked; the context must be left by the task that entered it.
        """
        require(p, Action.ATTACH_BOX)
        tell = notes or _ignore
        if kind == "spec":
            spec, workspace = await self._creatable(p, target, ws, anonymous=True)
            ttl = self._tier.deadline_exec if why == "exec" else None
            held = self._lifecycle.attach(
                p.owner, workspace, spec, why=why, key_id=p.key_id, notes=tell, default_ttl=ttl
            )
        else:
            box = await self.resolve(p, target, ws)
            held = self._lifecycle.attach_existing(box, why=why, key_id=p.key_id)
        async with held as attachment:
            yield attachment

    def images(self) -> list[Image]:
        """The image catalog."""
        return self._catalog.images()

    def flavors(self) -> list[Flavor]:
        """The flavor catalog."""
        return self._catalog.flavors()

    async def create_key(
        self, p: Principal, name: str, *, scope: str | None, ttl: timedelta | None
    ) -> tuple[ApiKey, Secret]:
        """Makes an API key; the Secret is the only time it is seen. Conflict for a taken name."""
        require(p, Action.CREATE_KEY)
        name = parse_key_name(name)
        if ttl is not None and ttl <= timedelta(0):
            raise BadRequest("the ttl of a key must be positive; for example --ttl 30d")
        self._tier.check_keys(len(await self._store.keys(p.owner)))
        if scope is not None:
            scope = parse_workspace(scope)
            await self._ensure_workspace(p, scope)
        now = self._clock.now()
        secret = Secret(KEY_PREFIX + random_hex(20))
        expires = None if ttl is None else now + ttl
        key = ApiKey(random_hex(16), p.owner, name, scope, now, expires, None)
        await self._store.add_key(key, digest(secret.reveal()))
        return key, secret

    async def list_keys(self, p: Principal) -> list[ApiKey]:
        """The API keys of the owner, oldest first."""
        require(p, Action.LIST_KEYS)
        return await self._store.keys(p.owner)

    async def remove_key(self, p: Principal, name: str) -> None:
        """Revokes an API key and ends what it holds open. NotFound.

        Unavailable when the database does not answer; what the key holds open has ended then too.
        """
        require(p, Action.REMOVE_KEY)
        found = [key for key in await self._store.keys(p.owner) if key.name == name]
        if not found:
            raise NotFound(f"no API key {shown(name)}; see: apikeys ls")
        for key in found:
            try:
                await self._store.remove_key(key.id)
            finally:
                self._touched.pop(key.id, None)
                self._lifecycle.attachments.end_key(key.id)

    async def principal_of_key(self, presented: str | None) -> Principal:
        """The principal of a presented API key. Every failure is the same InvalidKey."""
        if not presented or len(presented) > MAX_PRESENTED:
            raise InvalidKey
        key = await self._store.find_key(digest(presented))
        now = self._clock.now()
        if key is None or (key.expires is not None and key.expires <= now):
            raise InvalidKey
        self._touch(key)
        return Principal(key.owner, key.scope, "api_key", key.id)

    @asynccontextmanager
    async def drive(
        self, p: Principal, ws: str | None = None, *, create: bool = False
    ) -> AsyncIterator[Filesystem | None]:
        """The Filesystem of a workspace's volume, for a surface of this process.

        None for a workspace whose drive was never used, unless `create` makes it.
        NotFound for an unknown workspace, which `create` makes (never for a scoped credential);
        Unavailable when drives are not enabled.
        """
        require(p, Action.WRITE_DRIVE if create else Action.READ_DRIVE)
        workspace = _checked_workspace(p, ws)
        if self._drives is None:
            raise Unavailable("the workspace drive is not enabled on this host")
        if workspace is not None:
            if create:
                await self._ensure_workspace(p, workspace)
            elif workspace not in await self._store.workspaces(p.owner):
                raise NotFound(f"no workspace {shown(workspace)}")
        async with self._drives.use(p.owner, workspace, create=create) as filesystem:
            yield filesystem

    async def _no_suspend(self, p: Principal, ref: str, ws: str | None) -> Unsupported:
        """Why the box can be neither suspended nor resumed; refuses first who may not ask."""
        require(p, Action.SUSPEND_BOX)
        await self.resolve(p, ref, ws)
        return Unsupported(f"this host cannot suspend boxes: {self._lifecycle.why_no_suspend}")

    async def _visible(self, p: Principal) -> list[Box]:
        boxes = await self._store.boxes(p.owner)
        return [box for box in boxes if p.scope is None or box.workspace == p.scope]

    async def _creatable(
        self, p: Principal, text: str, ws: str | None, *, anonymous: bool
    ) -> tuple[BoxSpec, str | None]:
        """A spec that the principal may create, and its workspace, which is made at first use."""
        flavors = {flavor.name for flavor in self._catalog.flavors()}
        spec = parse_spec(text, flavors, allow_anonymous=anonymous)
        workspace = _joined_workspace(p, spec.workspace, ws)
        require(p, Action.CREATE_BOX, Target(p.owner, workspace))
        if workspace is not None:
            await self._ensure_workspace(p, workspace)
        return spec, workspace

    async def _ensure_workspace(self, p: Principal, name: str) -> None:
        present = await self._store.workspaces(p.owner)
        if name in present:
            return
        require(p, Action.CREATE_WORKSPACE)
        self._tier.check_workspaces(len(present))
        await self._store.add_workspace(p.owner, name, self._clock.now())

    def _view(self, box: Box) -> BoxView:
        return view_box(box, self._clock.now(), self._lifecycle.attachments.why(box.id))

    def _touch(self, key: ApiKey) -> None:
        """Writes `last_used` behind the request, at most once in TOUCH_INTERVAL."""
        now = self._clock.monotonic()
        last = self._touched.get(key.id)
        if last is not None and now - last < TOUCH_INTERVAL.total_seconds():
            return
        self._touched[key.id] = now
        task = asyncio.create_task(self._write_touch(key.id))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _write_touch(self, key_id: str) -> None:
        try:
            await self._store.touch_key(key_id, self._clock.now())
        except BoxdError:
            self._touched.pop(key_id, None)
            _log.debug("last use of a key not written; its next use tries again", exc_info=True)


def _ignore(_line: str) -> None:
    """Where notes go that nobody reads."""


def _checked_workspace(p: Principal, ws: str | None) -> str | None:
    return workspace_of(p, None if ws is None else parse_workspace(ws))


def _joined_workspace(p: Principal, inside: str | None, ws: str | None) -> str | None:
    """The workspace of a text that may name one itself, and of the call around it."""
    asked = None if ws is None else parse_workspace(ws)
    if inside is not None and asked is not None and inside != asked:
        raise BadRequest(f"the box is asked for in workspace {inside}, and by ws in {asked}")
    return workspace_of(p, inside or asked)


def _candidates(ref: str, boxes: list[Box]) -> str:
    listed = ", ".join(f"{box.ref} ({box.id})" for box in boxes[:_CANDIDATES])
    more = f" and {len(boxes) - _CANDIDATES} more" if len(boxes) > _CANDIDATES else ""
    return f"{shown(ref)} is ambiguous: {listed}{more}"
