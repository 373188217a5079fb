"""Profiles that are built of boxes: what these have on their disks, under a name of the owner's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.operations.boxes import BoxOperations
from boxd.operations.profiles import ProfileOperations

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from boxd.model.profile import Profile
    from boxd.principal import Principal


class BuildOperations(BoxOperations, ProfileOperations):
    """See the module."""

    async def build_profile(
        self,
        p: Principal,
        name: str,
        ref: str,
        *,
        flavor: str | None = None,
        ttl: timedelta | None = None,
        grace: timedelta | None = None,
        egress: str | None = None,
        notes: Callable[[str], None] | None = None,
    ) -> Profile:
        """Records a profile whose boxes start from the disk that a box has now.

        The disk is kept as a snapshot of the box, which stays as it is. `notes` gets lines for
        people. Raises what `set_profile` and `create_snapshot` raise; nothing is kept then.
        """
        require(p, Action.CHANGE_PROFILE)
        require(p, Action.SNAPSHOT_BOX)
        box = await self.resolve(p, ref)
        profile = self._profile_of(
            *(name, box.image), flavor=flavor, ttl=ttl, grace=grace, egress=egress
        )
        await self._check_room(p, profile.name)
        snapshot = await self._lifecycle.snapshot(box, None)
        profile = replace(
            profile, snapshot=snapshot.id, built_from=f"{snapshot.ref}@{snapshot.name}"
        )
        try:
            await self._put_profile(p, profile, notes)
        except BaseException:
            await self._lifecycle.snapshots.remove(snapshot)
            raise
        return profile
