"""Boxes: list, create, remove, suspend, resume, pin and keep them, and attach to them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.authz import Action, checked_workspace, require
from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.presence.expiry import Expiry
from boxd.boxes.state.requests import BoxRequest
from boxd.errors import BadRequest
from boxd.model.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import timedelta

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.boxes.limits.tier_limits import Tier
    from boxd.boxes.presence.removal_notices import UnusedBox
    from boxd.boxes.state.requests import BoxAccess
    from boxd.model.box import Box
    from boxd.model.progress import Progress
    from boxd.model.view import BoxView
    from boxd.operations.shared.box_directory import BoxDirectory
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
        registry: WorkspaceRegistry,
        lifecycle: Lifecycle,
        callers: Callers,
        vault: Vault,
        tier_of: Callable[[str], Tier],
    ) -> None:
        self._directory = directory
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
        progress: Progress = SILENT,
    ) -> BoxView:
        """Create the box of a spec, or start it, without attaching to it.

        `durable`: elapsed time never removes the box; None: the spec decides. Raises BadRequest if
        it is False and the spec has a `!`.
        Without `wait`, return as soon as the creation or the wake-up has begun. `progress` gets
        lines for users, and the box if this call creates or wakes it. Raises Conflict if the spec
        names a profile, image or flavor that differs from the box's.
        """
        box_spec, workspace = await self._directory.creatable(p, spec, ws, anonymous=False)
        if box_spec.durable and durable is False:
            raise BadRequest(
                f"'!' makes box {box_spec.name} durable, and --no-durable the opposite; give one"
            )
        request = BoxRequest(p.owner, workspace, box_spec, durable=durable)
        box = await self._lifecycle.up(request, progress, wait=wait)
        self._callers.seen(p, has_something=True)
        return self._directory.view(box)

    async def remove(
        self, p: Principal, ref: str, ws: str | None = None, *, force: bool = False
    ) -> BoxView:
        """Destroy a box, even while it has attachments; return its last state.

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
        """Resume a box; `detail` of the result shows whether it had to start from its disk.

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
        """Remove the pin of a box. No error if the box has none."""
        require(p, Action.PIN_BOX)
        box = await self._directory.resolve(p, ref, ws)
        return self._directory.view(await self._lifecycle.unpin(box))

    async def keep(
        self, p: Principal, ref: str, ws: str | None = None, *, durable: bool = True
    ) -> BoxView:
        """Make a box durable: the service removes it only at its deadline. Or undo that.

        Raises BadRequest if the box is removed with its last session.
        """
        require(p, Action.KEEP_BOX)
        box = await self._directory.resolve(p, ref, ws)
        return self._directory.view(await self._lifecycle.keep(box, durable=durable))

    async def removal_news(self, p: Principal) -> list[UnusedBox]:
        """Return the unused boxes that the service removes soon, to report them at a login.

        A later call returns a box again only when half of its time has passed.
        """
        require(p, Action.LIST_BOXES)
        boxes = await self._directory.visible(p)
        views = [self._directory.view(box) for box in boxes]
        return self._lifecycle.removal_notices.news(p.owner, views)

    @asynccontextmanager
    async def attach(
        self, p: Principal, access: BoxAccess, progress: Progress = SILENT
    ) -> AsyncIterator[Attachment]:
        """Hold a running box, with its drive attached, while the context lasts.

        The task that entered the context must also leave it. The principal of a share gets no
        secrets in the environment; a confidential box holds none.

        Raises Confidential if the box is confidential and the request has no `relay`; Conflict if
        it has one and the box is not confidential. Raises inside the context InvalidKey when the
        key or share is revoked or expires, and Forbidden when `Attachments.end_box` ends it.
        """
        require(p, Action.ATTACH_BOX if access.relay is None else Action.RELAY_BOX)
        self._access_policy.check_owner(p.owner)
        self._access_policy.check_work()
        target = await self._target(p, access)
        request = AttachRequest(target, access.why, p.key_id, Expiry.of(p), access.relay)
        async with self._lifecycle.attach(request, progress) as attachment:
            self._access_policy.check_owner(p.owner)  # from here on, blocking the owner ends it
            self._callers.seen(p, has_something=True)
            if access.why == SHELL:
                await self._lifecycle.report_oom(attachment, progress)
            if access.secrets:
                attachment = replace(attachment, env=await self._environment(p, attachment.box))
            yield attachment

    async def _target(self, p: Principal, access: BoxAccess) -> BoxRequest | Box:
        """Return the box of a reference, or the request for the box of a spec."""
        target = access.target
        if not isinstance(target, str):
            self._directory.check_visible(p, target)
            return target
        if access.kind == "reference":
            return await self._directory.resolve(p, target, access.ws)
        spec, workspace = await self._directory.creatable(p, target, access.ws, anonymous=True)
        ttl = self._tier_of(p.owner).deadline_exec if access.run_box else None
        return BoxRequest(p.owner, workspace, spec, default_ttl=ttl, ephemeral=access.ephemeral)

    async def _environment(self, p: Principal, box: Box) -> dict[str, str]:
        """Return the secrets for a principal's sessions in a box, by variable.

        A principal with a scope gets no secrets of the account. A confidential box gets none,
        because this host could read them.
        """
        if p.via == "share" or box.confidential:
            return {}
        return await self._vault.environment(p.owner, box.workspace, account=p.scope is None)
