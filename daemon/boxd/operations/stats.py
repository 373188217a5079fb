"""What is used of what there may be, and who the caller is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.boxes.quota import AWAKE
from boxd.model.stat import Identity, Stat
from boxd.names.words import DEFAULT_WORKSPACE
from boxd.operations.boxes import BoxOperations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd.model.box import Box
    from boxd.model.usage import Usage
    from boxd.principal import Principal

_MIB = 1024 * 1024


class StatOperations(BoxOperations):
    """See the module."""

    async def whoami(self, p: Principal) -> Identity:
        """Whom the service takes the principal for."""
        require(p, Action.LIST_KEYS)
        boxes = await self._visible(p)
        return Identity(
            fingerprint=p.owner,
            tier=self._tier_of(p.owner).name,
            boxes=len(boxes),
            workspaces=tuple(await self._store.workspaces(p.owner)),
            busy=tuple(sorted({box.workspace for box in boxes if box.workspace is not None})),
            api_keys=len(await self._store.keys(p.owner)),
        )

    async def box_limits(self, p: Principal) -> list[Stat]:
        """How many boxes there may be, beside those that the principal may see."""
        require(p, Action.LIST_BOXES)
        tier = self._tier_of(p.owner)
        boxes = await self._visible(p)
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
        """What the owner has, beside the limits of its tier; use as it was measured last."""
        require(p, Action.LIST_KEYS)
        tier = self._tier_of(p.owner)
        boxes = await self._visible(p)
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
        """What a box uses now, beside its caps, and its drive; see `resolve`."""
        box = await self.resolve(p, ref, ws)
        await self._lifecycle.usage.refresh(box.id)
        used = self._lifecycle.usage.last(box.id)
        stats = [] if used is None else _stats_of(box, used)
        return stats + [
            one
            for one in await self._drive_stats(p)
            if one.of == (box.workspace or DEFAULT_WORKSPACE)
        ]

    def _measured(self, boxes: Sequence[Box]) -> list[Stat]:
        """Sums over the boxes, none of them measured anew."""
        last = [self._lifecycle.usage.last(box.id) for box in boxes]
        found = [used for used in last if used is not None]
        return [
            Stat("cpu used", round(sum(used.cpu_s for used in found), 1), None, "s"),
            Stat("memory used", sum(used.memory_bytes for used in found), None, "bytes"),
            Stat("disk used", sum(used.disk_bytes for used in found), None, "bytes"),
            Stat("received", sum(used.net_rx_bytes for used in found), None, "bytes"),
            Stat("sent", sum(used.net_tx_bytes for used in found), None, "bytes"),
        ]

    async def _drive_stats(self, p: Principal) -> list[Stat]:
        """Bytes and files of the drives that were ever used."""
        if self._drives is None:
            return []
        stats = []
        found = await self._drives.usage(p.owner)
        for name, use in sorted(found.items(), key=lambda item: item[0] or ""):
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
        Stat("processes", used.pids, box.pids),
        Stat("received", used.net_rx_bytes, None, "bytes"),
        Stat("sent", used.net_tx_bytes, None, "bytes"),
    ]
