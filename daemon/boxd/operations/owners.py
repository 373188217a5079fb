"""Commands of administrators on owners: the list, tiers, blocks and keys.

Each method requires a principal that an open audit entry issued (`FleetOperations.audited`). No
method shows a secret or a file of an owner.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from boxd.boxes.limits.access_policy import BLOCKED
from boxd.boxes.limits.tier_limits import AWAKE
from boxd.model.fleet import OwnerView

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.boxes.limits.access_policy import AccessPolicy
    from boxd.boxes.limits.tier_limits import Tier
    from boxd.boxes.limits.tiers import Tiers
    from boxd.model.access.key import ApiKey
    from boxd.operations.keys import KeyOperations
    from boxd.operations.shared.audits import Audits
    from boxd.operations.shared.drives import Drives
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore


class OwnerOperations:
    """Lists owners, and changes their tier, their admission and their keys. Holds no state.

    Methods that take an owner raise BadName for a text that is not a fingerprint. `drives` None:
    drives are disabled on this host.
    """

    def __init__(
        self,
        store: ControlStore,
        audits: Audits,
        keys: KeyOperations,
        lifecycle: Lifecycle,
        tiers: Tiers,
        access_policy: AccessPolicy,
        drives: Drives | None,
    ) -> None:
        self._store = store
        self._audits = audits
        self._keys = keys
        self._lifecycle = lifecycle
        self._tiers = tiers
        self._access_policy = access_policy
        self._drives = drives

    async def fleet_owners(self, p: Principal) -> list[OwnerView]:
        """Return all owners with a box, a drive or an account record, by fingerprint."""
        self._audits.deed(p)
        boxes = await self._store.all_boxes()
        accounts = {one.owner: one for one in await self._store.accounts()}
        volumes = await self._store.list_volumes()
        count = Counter(box.owner for box in boxes)
        running = Counter(box.owner for box in boxes if box.state in AWAKE)
        used: Counter[str] = Counter()
        for box in boxes:
            usage = self._lifecycle.usage.last(box.id)
            used[box.owner] += usage.disk_bytes + usage.saved_memory_bytes if usage else 0
        for snapshot in await self._store.all_snapshots():
            used[snapshot.owner] += snapshot.size_bytes
        for owner, size in (await self._drive_bytes()).items():
            used[owner] += size
        owners = accounts.keys() | count.keys() | {one.owner for one in volumes}
        return [
            OwnerView(
                owner=owner,
                tier=self._tiers.name_of(owner),
                boxes=count[owner],
                running=running[owner],
                bytes=used[owner],
                last_seen=accounts[owner].last_seen if owner in accounts else None,
                blocked=self._access_policy.blocked_since(owner),
                name=accounts[owner].name if owner in accounts else None,
            )
            for owner in sorted(owners)
        ]

    async def fleet_tiers(self, p: Principal) -> list[tuple[str, Tier, int]]:
        """Return the tiers: name, limits, and the number of owners that are assigned to each."""
        self._audits.deed(p)
        return self._tiers.listed()

    async def fleet_set_tier(self, p: Principal, owner: str, tier: str) -> None:
        """Assign an owner, known or not, to a tier. Raises BadRequest, Unavailable."""
        await self._tiers.assign(self._audits.deed(p).about(owner), tier)

    async def fleet_block(self, p: Principal, owner: str) -> int:
        """Block an owner, and return how many of its attachments that ended.

        Its boxes remain, and expire like all others. Raises Conflict for an administrator,
        Unavailable.
        """
        owner = self._audits.deed(p).about(owner)
        await self._access_policy.block(owner)
        return self._lifecycle.attachments.end_owner(owner, BLOCKED)

    async def fleet_unblock(self, p: Principal, owner: str) -> None:
        """Unblock an owner. No error if the owner is not blocked. Raises Unavailable."""
        await self._access_policy.unblock(self._audits.deed(p).about(owner))

    async def fleet_keys(self, p: Principal, owner: str) -> list[ApiKey]:
        """Return the API keys of an owner, oldest first, without the keys themselves."""
        return await self._store.keys(self._audits.deed(p).about(owner))

    async def fleet_remove_key(self, p: Principal, owner: str, name: str) -> None:
        """Revoke a key of any owner, and end its attachments. Raises NotFound, Unavailable."""
        await self._keys.revoke(self._audits.deed(p).about(owner), name)

    async def _drive_bytes(self) -> dict[str, int]:
        """Return the bytes in the drives of each owner."""
        return {} if self._drives is None else await self._drives.sizes()
