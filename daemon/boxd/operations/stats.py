"""Usage and limits of an account and of a box, and the identity of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.boxes.limits.tier_limits import AWAKE
from boxd.model.stat import Identity, Stat
from boxd.names.words import DEFAULT_WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from boxd.boxes.limits.tier_limits import Tier
    from boxd.boxes.presence.usage import UsageSampler
    from boxd.model.box import Box
    from boxd.model.usage import Usage
    from boxd.operations.shared.box_directory import BoxDirectory
    from boxd.operations.shared.drives import Drives
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

_MIB = 1024 * 1024


class StatOperations:
    """Reports usage and limits. Holds no state. `drives` None: drives are not enabled."""

    def __init__(
        self,
        store: ControlStore,
        directory: BoxDirectory,
        usage: UsageSampler,
        drives: Drives | None,
        tier_of: Callable[[str], Tier],
    ) -> None:
        self._store = store
        self._directory = directory
        self._usage = usage
        self._drives = drives
        self._tier_of = tier_of

    async def whoami(self, p: Principal) -> Identity:
        """Return the identity of the principal, and the number of its boxes and keys.

        A scoped credential learns nothing about other workspaces, or about the keys of its owner.
        """
        require(p, Action.SHOW_IDENTITY)
        boxes = await self._directory.visible(p)
        if p.scope is not None:
            busy = (p.scope,) if boxes else ()
            tier = self._tier_of(p.owner).name
            return Identity(p.owner, tier, len(boxes), (p.scope,), busy, None, p.scope)
        account = await self._store.account(p.owner)
        return Identity(
            fingerprint=p.owner,
            tier=self._tier_of(p.owner).name,
            boxes=len(boxes),
            workspaces=tuple(await self._store.workspaces(p.owner)),
            busy=tuple(sorted({box.workspace for box in boxes if box.workspace is not None})),
            api_keys=len(await self._store.keys(p.owner)),
            key=p.fingerprint if p.via == "ssh_key" else None,
            name=account.name,
        )

    async def box_limits(self, p: Principal) -> list[Stat]:
        """Return the boxes that the principal can see, with the limits of its owner's tier."""
        require(p, Action.LIST_BOXES)
        tier = self._tier_of(p.owner)
        boxes = await self._directory.visible(p)
        awake = [box for box in boxes if box.state in AWAKE]
        return [
            Stat("boxes", len(boxes), tier.boxes),
            Stat("running boxes", len(awake), tier.running),
            Stat("cpus of running boxes", sum(box.cpus for box in awake), tier.cpus),
            Stat(
                "memory of running boxes",
                sum(box.mem_mb for box in awake) * _MIB,
                tier.mem_mb * _MIB,
                "bytes",
            ),
        ]

    async def account_stats(self, p: Principal) -> list[Stat]:
        """Return the usage of the owner as last measured, with the limits of its tier."""
        require(p, Action.LIST_KEYS)
        tier = self._tier_of(p.owner)
        boxes = await self._directory.visible(p)
        snapshots = await self._store.snapshots(p.owner)
        return [
            *await self.box_limits(p),
            *self._measured(boxes),
            Stat("snapshots", len(snapshots), tier.snapshots),
            Stat("disk of snapshots", sum(one.size_bytes for one in snapshots), None, "bytes"),
            Stat("api keys", len(await self._store.keys(p.owner)), tier.keys),
            Stat("workspaces", len(await self._store.workspaces(p.owner)), tier.workspaces),
            *await self._drive_stats(p),
        ]

    async def box_stats(self, p: Principal, ref: str, ws: str | None = None) -> list[Stat]:
        """Return the current usage of a box and its drive, with their limits.

        Raises what `BoxDirectory.resolve` raises.
        """
        box = await self._directory.resolve(p, ref, ws)
        await self._usage.refresh(box.id)
        used = self._usage.last(box.id)
        stats = [] if used is None else _stats_of(box, used)
        return stats + [
            one
            for one in await self._drive_stats(p)
            if one.of == (box.workspace or DEFAULT_WORKSPACE)
        ]

    def _measured(self, boxes: Sequence[Box]) -> list[Stat]:
        """Return sums over boxes, from their last measurement."""
        usages = [used for box in boxes if (used := self._usage.last(box.id)) is not None]
        return [
            Stat("cpu used", round(sum(used.cpu_s for used in usages), 1), None, "s"),
            Stat("memory used", sum(used.memory_bytes for used in usages), None, "bytes"),
            Stat("disk used", sum(used.disk_bytes for used in usages), None, "bytes"),
            Stat("saved memory", sum(used.saved_memory_bytes for used in usages), None, "bytes"),
            Stat("received", sum(used.net_rx_bytes for used in usages), None, "bytes"),
            Stat("sent", sum(used.net_tx_bytes for used in usages), None, "bytes"),
        ]

    async def _drive_stats(self, p: Principal) -> list[Stat]:
        """Return the bytes and files of each drive that has been used."""
        if self._drives is None:
            return []
        stats = []
        usage = await self._drives.usage(p.owner)
        for name, use in sorted(usage.items(), key=lambda item: item[0] or ""):
            if p.scope in (None, name):
                of = name or DEFAULT_WORKSPACE
                stats.append(Stat("drive", use.bytes, use.bytes_limit, "bytes", of))
                stats.append(Stat("drive files", use.files, use.files_limit, "", of))
        return stats


def _stats_of(box: Box, used: Usage) -> list[Stat]:
    share = None if used.cpu_share is None else round(100 * used.cpu_share)
    return [
        Stat("cpu used", round(used.cpu_s, 1), None, "s"),
        Stat("cpu lately", share, round(100 * box.cpus), "%"),
        Stat("memory", used.memory_bytes, box.mem_mb * _MIB, "bytes"),
        Stat("disk", used.disk_bytes, box.disk_mb * _MIB or None, "bytes"),
        Stat("saved memory", used.saved_memory_bytes, None, "bytes"),
        Stat("processes", used.pids, box.pids),
        Stat("received", used.net_rx_bytes, None, "bytes"),
        Stat("sent", used.net_tx_bytes, None, "bytes"),
    ]
