"""Commands of administrators on boxes of all owners, and on the host.

Each method requires a principal that an open audit entry issued (`audited`). No method shows a
secret, a file or a session of an owner.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from boxd.boxes.limits.tier_limits import AWAKE
from boxd.errors import Ambiguous, NotFound
from boxd.model.fleet import FleetBox, Level
from boxd.names.fingerprint import parse_fleet_reference
from boxd.names.words import shown

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.boxes.limits.access_policy import AccessPolicy
    from boxd.model.account import Audit
    from boxd.model.box import Box
    from boxd.operations.shared.audits import Audits, Deed
    from boxd.operations.shared.box_directory import BoxDirectory
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

KICKED = "an administrator of this service ended the connection"
MAX_AUDITS = 10_000
"""Maximum number of audit entries that one call returns."""
_CANDIDATES = 10
_MIB = 1024 * 1024


class FleetOperations:
    """Commands of administrators on boxes and on the host. Holds no state."""

    def __init__(
        self,
        store: ControlStore,
        audits: Audits,
        directory: BoxDirectory,
        lifecycle: Lifecycle,
        access_policy: AccessPolicy,
    ) -> None:
        self._store = store
        self._audits = audits
        self._directory = directory
        self._lifecycle = lifecycle
        self._access_policy = access_policy

    def audited(self, p: Principal, line: str) -> AbstractAsyncContextManager[Deed]:
        """Record a command line, and yield the principal for its methods. Raises Unavailable."""
        return self._audits.entry(p, line)

    async def fleet_boxes(self, p: Principal, owner: str | None = None) -> list[FleetBox]:
        """Return all boxes, or those of an owner, oldest first. Raises BadName."""
        deed = self._audits.deed(p)
        if owner is None:
            boxes = await self._store.all_boxes()
        else:
            boxes = await self._store.boxes(deed.about(owner))
        return [self._fleet_box(box) for box in boxes]

    async def fleet_remove(self, p: Principal, ref: str) -> FleetBox:
        """Destroy a box of any owner; return its last state.

        Raises BadName, NotFound, Ambiguous.
        """
        box = await self._any_box(p, ref)
        view = self._fleet_box(box)
        await self._lifecycle.remove(box)
        return view

    async def fleet_suspend(self, p: Principal, ref: str) -> FleetBox:
        """Suspend a box of any owner.

        Raises what `fleet_remove` and `BoxOperations.suspend` raise.
        """
        return self._fleet_box(await self._lifecycle.suspend(await self._any_box(p, ref)))

    async def fleet_resume(self, p: Principal, ref: str) -> FleetBox:
        """Resume a box of any owner.

        Raises what `fleet_remove` and `BoxOperations.resume` raise.
        """
        box = await self._any_box(p, ref)
        self._lifecycle.check_suspends()
        return self._fleet_box(await self._lifecycle.wake(box))

    async def fleet_kick(self, p: Principal, ref: str) -> FleetBox:
        """End all attachments of a box of any owner: sessions, forwardings and commands."""
        box = await self._any_box(p, ref)
        ended = self._lifecycle.attachments.end_box(box.id, KICKED)
        return FleetBox(box.owner, self._directory.view(box), ended)

    async def fleet_levels(self, p: Principal) -> list[Level]:
        """Return the usage of the host, with its limits."""
        self._audits.deed(p)
        boxes = await self._store.all_boxes()
        awake = [box for box in boxes if box.state in AWAKE]
        used = [usage for box in boxes if (usage := self._lifecycle.usage.last(box.id))]
        blocked = sum(one.blocked is not None for one in await self._store.accounts())
        host = self._lifecycle.host
        levels = [
            Level("owners with boxes", len({box.owner for box in boxes})),
            Level("blocked owners", blocked),
            Level("boxes", len(boxes)),
            Level("running boxes", len(awake), host.running if host else None),
            Level("attachments", sum(self._lifecycle.use(box).attached for box in boxes)),
            Level("CPUs of running boxes", sum(box.cpus for box in awake)),
            Level(
                "memory caps of running boxes",
                sum(box.mem_mb for box in awake),
                host.mem_mb if host else None,
                "MiB",
            ),
            Level("memory in use", sum(one.memory_bytes for one in used) // _MIB, unit="MiB"),
            Level("disks of boxes", sum(one.disk_bytes for one in used) // _MIB, unit="MiB"),
            Level(
                "saved memory of boxes",
                sum(one.saved_memory_bytes for one in used) // _MIB,
                unit="MiB",
            ),
        ]
        if host is not None:
            levels.append(Level("free disk space", await asyncio.to_thread(host.free), unit="MiB"))
            levels.append(Level("free disk space that stays", host.free_mb, unit="MiB"))
        return [*levels, Level("draining", self._access_policy.draining)]

    async def fleet_audits(self, p: Principal, limit: int, owner: str | None = None) -> list[Audit]:
        """Return the last audit entries, newest first: all, or those about an owner."""
        deed = self._audits.deed(p)
        about = None if owner is None else deed.about(owner)
        return await self._store.audits(limit, about)

    def fleet_drain(self, p: Principal, *, cancel: bool = False) -> None:
        """Reject new boxes, resumes and attachments until `cancel` or a restart of the service.

        Existing attachments continue.
        """
        self._audits.deed(p)
        self._access_policy.draining = not cancel

    async def _any_box(self, p: Principal, text: str) -> Box:
        """Return the box that an administrator's reference means.

        Raises BadName, NotFound, Ambiguous.
        """
        deed = self._audits.deed(p)
        owner, ref = parse_fleet_reference(text)
        if owner is None:
            boxes = await self._store.all_boxes()
        else:
            boxes = await self._store.boxes(deed.about(owner))
        matches = [
            box
            for box in boxes
            if (ref.id_prefix is not None and box.id.startswith(ref.id_prefix))
            or (owner is not None and (box.workspace, box.name) == (ref.workspace, ref.name))
        ]
        if not matches:
            raise NotFound(f"no box {shown(text)}; see: ls")
        if len(matches) > 1:
            listed = ", ".join(f"{box.id} ({box.owner}:{box.ref})" for box in matches[:_CANDIDATES])
            more = f" and {len(matches) - _CANDIDATES} more" if len(matches) > _CANDIDATES else ""
            raise Ambiguous(f"{shown(text)} is ambiguous: {listed}{more}")
        deed.owners.add(matches[0].owner)
        return matches[0]

    def _fleet_box(self, box: Box) -> FleetBox:
        return FleetBox(box.owner, self._directory.view(box))
