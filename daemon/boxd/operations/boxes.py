"""Boxes: listing, finding, making, removing and attaching to them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from boxd.authz import Action, Target, require
from boxd.errors import Ambiguous, NotFound
from boxd.model.box import BoxState
from boxd.model.view import BoxView, view_box
from boxd.names.reference import parse_reference
from boxd.names.spec import parse_spec
from boxd.names.words import shown
from boxd.operations.core import Core, checked_workspace, expiry_of, joined_workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import timedelta

    from boxd.boxes.lifecycle import Attachment
    from boxd.model.box import Box
    from boxd.names.reference import Reference
    from boxd.names.spec import BoxSpec
    from boxd.principal import Principal

_CANDIDATES = 10


class BoxOperations(Core):
    """See the module."""

    async def list_boxes(
        self, p: Principal, ws: str | None = None, *, everywhere: bool = False
    ) -> list[BoxView]:
        """The boxes of one workspace (None: the credential's default), or `everywhere` it may."""
        require(p, Action.LIST_BOXES)
        workspace = checked_workspace(p, ws)
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
        workspace = joined_workspace(p, reference.workspace, ws)
        boxes = await self._store.boxes_meant(
            p.owner, workspace, reference.name, reference.id_prefix
        )
        found = [box for box in boxes if _is_visible(p, box)]
        if not found:
            raise NotFound(f"no box {shown(str(reference))}; see: ls")
        if len(found) > 1:
            raise Ambiguous(_candidates(str(reference), found))
        return found[0]

    def is_anywhere(self, reference: Reference) -> bool:
        """Whether a box of any owner may be meant: for who shows no key. From memory."""
        return self._lifecycle.census.has(reference)

    async def inspect(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """The one box that a reference means, with its present use of resources; see `resolve`."""
        box = await self.resolve(p, ref, ws)
        await self._lifecycle.usage.refresh(box.id)
        return self._view(box)

    async def up(
        self,
        p: Principal,
        spec: str,
        ws: str | None = None,
        *,
        durable: bool | None = None,
        wait: bool = True,
        notes: Callable[[str], None] | None = None,
    ) -> BoxView:
        """Creates the box of a spec, or starts it, and has it run without an attachment.

        A `durable` box is not removed for being unused; None: it stays what it is. Without `wait`
        it is shown as soon as it is on its way. `notes` gets lines for people.
        """
        box_spec, workspace = await self._creatable(p, spec, ws, anonymous=False)
        box = await self._lifecycle.up(
            p.owner, workspace, box_spec, durable=durable, wait=wait, notes=notes or _ignore
        )
        self.seen(p, has_something=True)
        return self._view(box)

    async def remove(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Destroys a box, whatever holds it; returns what it was."""
        require(p, Action.REMOVE_BOX)
        box = await self.resolve(p, ref, ws)
        view = self._view(box)
        await self._lifecycle.remove(box)
        return view

    async def suspend(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Memory and processes of a box to disk; one that sleeps stays as it is.

        Unsupported where the backend cannot; Conflict names who uses the box, or what in it cannot
        be kept.
        """
        require(p, Action.SUSPEND_BOX)
        box = await self.resolve(p, ref, ws)
        return self._view(await self._lifecycle.suspend(box))

    async def resume(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Has a box run on; `detail` tells if it had to start from its disk. Unsupported."""
        require(p, Action.SUSPEND_BOX)
        box = await self.resolve(p, ref, ws)
        self._gate.check_work()
        self._lifecycle.check_suspends()
        return self._view(await self._lifecycle.wake(box))

    async def pin(
        self, p: Principal, ref: str, ws: str | None = None, *, span: timedelta, why: str = ""
    ) -> BoxView:
        """Keeps a box awake for `span`, at most until its deadline. BadRequest."""
        require(p, Action.PIN_BOX)
        box = await self.resolve(p, ref, ws)
        return self._view(await self._lifecycle.pin(box, span, why))

    async def unpin(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Takes the pin of a box away; no error if it has none."""
        require(p, Action.PIN_BOX)
        box = await self.resolve(p, ref, ws)
        return self._view(await self._lifecycle.unpin(box))

    @asynccontextmanager
    async def attach(
        self,
        p: Principal,
        target: str | Box,
        ws: str | None = None,
        *,
        kind: Literal["spec", "reference"],
        why: str,
        run_box: bool = False,
        secrets: bool = True,
        relay: str | None = None,
        ephemeral: bool | None = None,
        notes: Callable[[str], None] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncIterator[Attachment]:
        """Holds a running box, with its drive in it, while the context lasts.

        A `spec` creates the box when it is not there, a `reference` never does; both wake it. A Box
        is one that a reference has just been found to mean for this principal.
        What is started through it gets the owner's secrets in its environment: not through a share,
        nor in a confidential box, nor without `secrets`, for who starts nothing.
        `run_box`: a box that is made here for one command has the tier's default deadline, unless
        its spec or its profile has one. `ephemeral`: whether a box that is made here goes with its
        last hold; None: one without a name does. `relay`: the caller's public key, for who comes to
        the SSH server inside; what is made then is confidential.
        `notes` gets lines for people, `progress` what they wait for. Raises InvalidKey inside the
        context when the key or share that opened it is revoked or expires, Forbidden when it is
        ended otherwise (`Attachments.end_box`), Confidential without `relay` and Conflict with it
        where the other way leads to the box; the context must be left by the task that entered it.
        """
        require(p, Action.ATTACH_BOX if relay is None else Action.RELAY_BOX)
        self._gate.check_owner(p.owner)
        self._gate.check_work()
        begun = partial(_tell_begun, progress or _ignore)
        if kind == "spec" and isinstance(target, str):
            spec, workspace = await self._creatable(p, target, ws, anonymous=True)
            ttl = self._tier_of(p.owner).deadline_exec if run_box else None
            held = self._lifecycle.attach(
                *(p.owner, workspace, spec),
                why=why,
                key_id=p.key_id,
                expiry=expiry_of(p),
                notes=notes or _ignore,
                begun=begun,
                default_ttl=ttl,
                relay=relay,
                ephemeral=ephemeral,
            )
        else:
            box = await self._meant(p, target, ws)
            held = self._lifecycle.attach_existing(
                box, why=why, key_id=p.key_id, expiry=expiry_of(p), begun=begun, relay=relay
            )
        async with held as attachment:
            self._gate.check_owner(p.owner)  # from here on a block ends it
            self.seen(p, has_something=True)
            if secrets:
                env = await self._environment(p, attachment.box)
                attachment = replace(attachment, env=env)
            yield attachment

    async def _meant(self, p: Principal, target: str | Box, ws: str | None) -> Box:
        """As `resolve`; of what has been found already only whether the principal may see it."""
        if isinstance(target, str):
            return await self.resolve(p, target, ws)
        if target.owner != p.owner or not _is_visible(p, target):
            raise NotFound(f"no box {target.id}; see: ls")
        return target

    async def _environment(self, p: Principal, box: Box) -> dict[str, str]:
        """What a principal's sessions in a box get; a confined one has no secrets of the account.

        A confidential box gets none: they would stand in what this host sees.
        """
        if p.via == "share" or box.confidential:
            return {}
        return await self._vault.environment(p.owner, box.workspace, account=p.scope is None)

    async def _visible(self, p: Principal) -> list[Box]:
        """The boxes that there are for the principal."""
        return [box for box in await self._store.boxes(p.owner) if _is_visible(p, box)]

    async def _creatable(
        self, p: Principal, text: str, ws: str | None, *, anonymous: bool
    ) -> tuple[BoxSpec, str | None]:
        """A spec that the principal may create, and its workspace, which is made with the box."""
        flavors = {flavor.name for flavor in self._catalog.flavors()}
        spec = parse_spec(text, flavors, allow_anonymous=anonymous)
        workspace = joined_workspace(p, spec.workspace, ws)
        require(p, Action.CREATE_BOX, Target(p.owner, workspace))
        self._gate.check_work()
        if workspace is not None:
            await self._check_enters(p, workspace)
        return spec, workspace

    def _view(self, box: Box) -> BoxView:
        return view_box(box, self._clock.now(), self._lifecycle.use(box))


def _is_visible(p: Principal, box: Box) -> bool:
    """Whether a box of the principal's owner is there for it."""
    return (p.scope is None or box.workspace == p.scope) and p.box in (None, box.id)


def _tell_begun(tell: Callable[[str], None], box: Box) -> None:
    """What happens to a box that somebody waits for."""
    if box.state is BoxState.CREATING:
        tell(f"creating {box.ref} ...")
    else:
        tell(f"{'resuming' if box.memory else 'starting'} {box.ref} ...")


def _ignore(_line: str) -> None:
    """Where notes go that nobody reads."""


def _candidates(ref: str, boxes: list[Box]) -> str:
    listed = ", ".join(f"{box.ref} ({box.id})" for box in boxes[:_CANDIDATES])
    more = f" and {len(boxes) - _CANDIDATES} more" if len(boxes) > _CANDIDATES else ""
    return f"{shown(ref)} is ambiguous: {listed}{more}"
