"""What administrators do over all owners: product spec, section 2.4, user `sudo`.

Every verb wants a principal that an open entry of the audit gave out (`audited`). None shows a
secret, a file or a session of anybody.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from boxd.boxes.gate import BLOCKED
from boxd.boxes.quota import AWAKE
from boxd.errors import Ambiguous, NotFound
from boxd.model.fleet import FleetBox, Level, OwnerView
from boxd.names.fingerprint import parse_fleet_reference, parse_owner
from boxd.names.words import shown
from boxd.operations.boxes import BoxOperations
from boxd.operations.keys import KeyOperations

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.quota import Tier
    from boxd.model.account import Audit
    from boxd.model.box import Box
    from boxd.model.key import ApiKey
    from boxd.operations.audits import Deed
    from boxd.principal import Principal

KICKED = "an administrator of this service ended the connection"
MAX_AUDITS = 10_000
"""Entries of the audit that are shown at once."""
_CANDIDATES = 10
_MIB = 1024 * 1024


class FleetOperations(BoxOperations, KeyOperations):
    """See the module. Verbs that take an owner raise BadName for another text."""

    def audited(self, p: Principal, line: str) -> AbstractAsyncContextManager[Deed]:
        """Writes a command line down, and gives out whom its verbs are run as. Unavailable."""
        return self._audits.entry(p, line)

    async def fleet_owners(self, p: Principal) -> list[OwnerView]:
        """Everybody who has a box, a drive, or something recorded, by fingerprint."""
        self._audits.deed(p)
        boxes = await self._store.all_boxes()
        accounts = {one.owner: one for one in await self._store.accounts()}
        volumes = await self._store.list_volumes()
        count = Counter(box.owner for box in boxes)
        running = Counter(box.owner for box in boxes if box.state in AWAKE)
        used: Counter[str] = Counter()
        for box in boxes:
            usage = self._lifecycle.usage.last(box.id)
            used[box.owner] += usage.disk_bytes if usage else 0
        for owner, size in (await self._drive_bytes()).items():
            used[owner] += size
        found = accounts.keys() | count.keys() | {one.owner for one in volumes}
        return [
            OwnerView(
                owner=owner,
                tier=self._tiers.name_of(owner),
                boxes=count[owner],
                running=running[owner],
                bytes=used[owner],
                last_seen=accounts[owner].last_seen if owner in accounts else None,
                blocked=self._gate.blocked_since(owner),
            )
            for owner in sorted(found)
        ]

    async def fleet_boxes(self, p: Principal, owner: str | None = None) -> list[FleetBox]:
        """All boxes, or those of an owner, oldest first."""
        deed = self._audits.deed(p)
        if owner is None:
            boxes = await self._store.all_boxes()
        else:
            boxes = await self._store.boxes(_about(deed, owner))
        return [self._fleet_box(box) for box in boxes]

    async def fleet_remove(self, p: Principal, ref: str) -> FleetBox:
        """Destroys a box of anybody; returns what it was. BadName, NotFound, Ambiguous."""
        box = await self._any_box(p, ref)
        view = self._fleet_box(box)
        await self._lifecycle.remove(box)
        return view

    async def fleet_suspend(self, p: Principal, ref: str) -> FleetBox:
        """Puts a box of anybody to sleep. As `fleet_remove`, and as `suspend`."""
        return self._fleet_box(await self._lifecycle.suspend(await self._any_box(p, ref)))

    async def fleet_resume(self, p: Principal, ref: str) -> FleetBox:
        """Has a box of anybody run on. As `fleet_remove`, and as `resume`."""
        box = await self._any_box(p, ref)
        self._lifecycle.check_suspends()
        return self._fleet_box(await self._lifecycle.wake(box))

    async def fleet_kick(self, p: Principal, ref: str) -> FleetBox:
        """Ends all that holds a box of anybody: sessions, forwardings, commands."""
        box = await self._any_box(p, ref)
        ended = self._lifecycle.attachments.end_box(box.id, KICKED)
        return FleetBox(box.owner, self._view(box), ended)

    async def fleet_tiers(self, p: Principal) -> list[tuple[str, Tier, int]]:
        """The tiers by name: their limits, and how many owners were given each."""
        self._audits.deed(p)
        return self._tiers.listed()

    async def fleet_set_tier(self, p: Principal, owner: str, tier: str) -> None:
        """Gives an owner, who need not be here yet, other limits. BadRequest, Unavailable."""
        await self._tiers.assign(_about(self._audits.deed(p), owner), tier)

    async def fleet_block(self, p: Principal, owner: str) -> int:
        """Keeps an owner out; returns how many of its attachments that ended.

        Its boxes stay, and age as those of everybody. Conflict for an administrator; Unavailable.
        """
        owner = _about(self._audits.deed(p), owner)
        await self._gate.block(owner)
        return self._lifecycle.attachments.end_owner(owner, BLOCKED)

    async def fleet_unblock(self, p: Principal, owner: str) -> None:
        """Lets an owner in again; no error for one who is not blocked. Unavailable."""
        await self._gate.unblock(_about(self._audits.deed(p), owner))

    async def fleet_keys(self, p: Principal, owner: str) -> list[ApiKey]:
        """The API keys of an owner, oldest first; the keys themselves are stored nowhere."""
        return await self._store.keys(_about(self._audits.deed(p), owner))

    async def fleet_remove_key(self, p: Principal, owner: str, name: str) -> None:
        """Revokes a key of anybody, and ends what it holds open. NotFound, Unavailable."""
        await self._revoke_key(_about(self._audits.deed(p), owner), name)

    async def fleet_levels(self, p: Principal) -> list[Level]:
        """What there is, and what the host has room for."""
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
        ]
        if host is not None:
            levels.append(Level("free disk space", await asyncio.to_thread(host.free), unit="MiB"))
            levels.append(Level("free disk space that stays", host.free_mb, unit="MiB"))
        return [*levels, Level("draining", self._gate.draining)]

    async def fleet_audits(self, p: Principal, limit: int, owner: str | None = None) -> list[Audit]:
        """The last entries of the audit, newest first: all, or those about an owner."""
        deed = self._audits.deed(p)
        about = None if owner is None else _about(deed, owner)
        return await self._store.audits(limit, about)

    def fleet_drain(self, p: Principal, *, cancel: bool = False) -> None:
        """No box is made, woken or attached to any more, until that is taken back or the service
        starts again. What is attached stays."""
        self._audits.deed(p)
        self._gate.draining = not cancel

    async def _any_box(self, p: Principal, text: str) -> Box:
        """The box that a reference of an administrator means. BadName, NotFound, Ambiguous."""
        deed = self._audits.deed(p)
        owner, ref = parse_fleet_reference(text)
        if owner is None:
            boxes = await self._store.all_boxes()
        else:
            boxes = await self._store.boxes(_about(deed, owner))
        found = [
            box
            for box in boxes
            if (ref.id_prefix is not None and box.id.startswith(ref.id_prefix))
            or (owner is not None and (box.workspace, box.name) == (ref.workspace, ref.name))
        ]
        if not found:
            raise NotFound(f"no box {shown(text)}; see: ls")
        if len(found) > 1:
            listed = ", ".join(f"{box.id} ({box.owner}:{box.ref})" for box in found[:_CANDIDATES])
            more = f" and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
            raise Ambiguous(f"{shown(text)} is ambiguous: {listed}{more}")
        deed.owners.add(found[0].owner)
        return found[0]

    def _fleet_box(self, box: Box) -> FleetBox:
        return FleetBox(box.owner, self._view(box))

    async def _drive_bytes(self) -> dict[str, int]:
        """What the drives of each owner hold."""
        return {} if self._drives is None else await self._drives.sizes()


def _about(deed: Deed, text: str) -> str:
    """The owner that a command is about, noted in the audit's entry. BadName."""
    owner = parse_owner(text)
    deed.owners.add(owner)
    return owner
