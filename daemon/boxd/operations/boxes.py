"""Boxes: list, create, remove, suspend, resume and pin them, and attach to them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from boxd.authz import Action, require
from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.state.requests import BoxRequest
from boxd.model.progress import Progress
from boxd.operations.shared.scope import checked_workspace, expiry_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import timedelta

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.boxes.limits.quota import Tier
    from boxd.model.box import Box
    from boxd.model.view import BoxView
    from boxd.operations.shared.box_directory import BoxDirectory
    from boxd.operations.shared.box_specs import BoxSpecs
    from boxd.operations.shared.callers import Callers
    from boxd.operations.shared.vault import Vault
    from boxd.operations.shared.workspace_registry import WorkspaceRegistry
    from boxd.principal import Principal

SHELL = "shell"
"""The reason that an SSH login gives for its attachment."""


class BoxOperations:
    """Creates boxes, changes them, and attaches callers to them. Holds no state."""

    def __init__(
        self,
        directory: BoxDirectory,
        specs: BoxSpecs,
        registry: WorkspaceRegistry,
        lifecycle: Lifecycle,
        callers: Callers,
        vault: Vault,
        tier_of: Callable[[str], Tier],
    ) -> None:
        self._directory = directory
        self._specs = specs
        self._registry = registry
        self._lifecycle = lifecycle
        self._callers = callers
        self._access_policy = callers.access_policy
        self._vault = vault
        self._tier_of = tier_of

    async def list_boxes(
        self, p: Principal, ws: str | None = None, *, everywhere: bool = False
    ) -> list[BoxView]:
        """Return the boxes of one workspace, or all visible boxes with `everywhere`.

        `ws` None means the default workspace of the credential. Raises NotFound for a named
        workspace that does not exist.
        """
        require(p, Action.LIST_BOXES)
        workspace = checked_workspace(p, ws)
        boxes = await self._directory.visible(p)
        if ws is not None and workspace not in {box.workspace for box in boxes}:
            await self._registry.check_exists(p, workspace)
        if not everywhere or ws is not None:
            boxes = [box for box in boxes if box.workspace == workspace]
        return [self._directory.view(box) for box in boxes]

    async def inspect(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Return the box that a reference means, with its current use of resources.

        Raises what `BoxDirectory.resolve` raises.
        """
        box = await self._directory.resolve(p, ref, ws)
        await self._lifecycle.usage.refresh(box.id)
        return self._directory.view(box)

    async def up(
        self,
        p: Principal,
        spec: str,
        ws: str | None = None,
        *,
        durable: bool | None = None,
        wait: bool = True,
        notes: Callable[[str], None] | None = None,
        begun: Callable[[Box], None] | None = None,
    ) -> BoxView:
        """Creates the box of a spec, or starts it, and has it run without an attachment.

        A `durable` box is not removed for being unused; None: it stays what it is. Without `wait`
        it is shown as soon as it is on its way. `notes` gets lines for people, `begun` the box if
        this call makes or wakes it. Conflict when the spec names another profile, image or flavor.
        """
        box_spec, workspace = await self._specs.creatable(p, spec, ws, anonymous=False)
        request = BoxRequest(p.owner, workspace, box_spec, durable=durable)
        box = await self._lifecycle.up(request, Progress(notes, begun), wait=wait)
        self._callers.seen(p, has_something=True)
        return self._directory.view(box)

    async def remove(
        self, p: Principal, ref: str, ws: str | None = None, *, force: bool = False
    ) -> BoxView:
        """Destroy a box, also while it has attachments; return its last state.

        Raises Pinned while the box has a pin, unless `force` is set.
        """
        require(p, Action.REMOVE_BOX)
        box = await self._directory.resolve(p, ref, ws)
        view = self._directory.view(box)
        await self._lifecycle.remove(box, force=force)
        return view

    async def suspend(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Write the memory and processes of a box to disk; a suspended box stays as it is.

        Raises Unsupported if the backend cannot suspend boxes; Conflict with the attachment that
        uses the box, or the process that cannot be checkpointed.
        """
        require(p, Action.SUSPEND_BOX)
        box = await self._directory.resolve(p, ref, ws)
        return self._directory.view(await self._lifecycle.suspend(box))

    async def resume(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Resume a box; `detail` of the result says whether it had to start from its disk.

        Raises Unsupported if the backend cannot suspend boxes.
        """
        require(p, Action.SUSPEND_BOX)
        box = await self._directory.resolve(p, ref, ws)
        self._access_policy.check_work()
        self._lifecycle.check_suspends()
        return self._directory.view(await self._lifecycle.wake(box))

    async def pin(
        self, p: Principal, ref: str, ws: str | None = None, *, span: timedelta, why: str = ""
    ) -> BoxView:
        """Keep a box awake for `span`, at most until its deadline. Raises BadRequest."""
        require(p, Action.PIN_BOX)
        box = await self._directory.resolve(p, ref, ws)
        return self._directory.view(await self._lifecycle.pin(box, span, why))

    async def unpin(self, p: Principal, ref: str, ws: str | None = None) -> BoxView:
        """Remove the pin of a box; a box without a pin is no error."""
        require(p, Action.PIN_BOX)
        box = await self._directory.resolve(p, ref, ws)
        return self._directory.view(await self._lifecycle.unpin(box))

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
        self._access_policy.check_owner(p.owner)
        self._access_policy.check_work()
        reports = Progress.in_lines(notes, progress)
        box: BoxRequest | Box
        if kind == "spec" and isinstance(target, str):
            spec, workspace = await self._specs.creatable(p, target, ws, anonymous=True)
            ttl = self._tier_of(p.owner).deadline_exec if run_box else None
            box = BoxRequest(p.owner, workspace, spec, default_ttl=ttl, ephemeral=ephemeral)
        else:
            box = await self._meant(p, target, ws)
        request = AttachRequest(box, why, p.key_id, expiry_of(p), relay)
        async with self._lifecycle.attach(request, reports) as attachment:
            self._access_policy.check_owner(p.owner)  # from here on a block ends it
            self._callers.seen(p, has_something=True)
            if why == SHELL:
                await self._lifecycle.report_oom(attachment, reports)
            if secrets:
                attachment = replace(attachment, env=await self._environment(p, attachment.box))
            yield attachment

    async def _meant(self, p: Principal, target: str | Box, ws: str | None) -> Box:
        """Return the box of a reference; of a Box, check that the principal can see it."""
        if isinstance(target, str):
            return await self._directory.resolve(p, target, ws)
        self._directory.check_visible(p, target)
        return target

    async def _environment(self, p: Principal, box: Box) -> dict[str, str]:
        """Return the secrets for a principal's sessions in a box, by variable.

        A principal with a scope gets no secrets of the account. A confidential box gets none,
        because this host could read them.
        """
        if p.via == "share" or box.confidential:
            return {}
        return await self._vault.environment(p.owner, box.workspace, account=p.scope is None)
