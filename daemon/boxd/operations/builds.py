"""Profiles that are built from boxes: new boxes start from a copy of the box's disk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.model.profile import NO_DEFAULTS
from boxd.model.progress import SILENT

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.model.profile import Profile, ProfileDefaults
    from boxd.model.progress import Progress
    from boxd.operations.profiles import ProfileOperations
    from boxd.operations.shared.box_directory import BoxDirectory
    from boxd.principal import Principal


class BuildOperations:
    """Builds profiles from boxes. Holds no state."""

    def __init__(
        self, directory: BoxDirectory, profiles: ProfileOperations, lifecycle: Lifecycle
    ) -> None:
        self._directory = directory
        self._profiles = profiles
        self._lifecycle = lifecycle

    async def build_profile(
        self,
        p: Principal,
        name: str,
        ref: str,
        defaults: ProfileDefaults = NO_DEFAULTS,
        progress: Progress = SILENT,
    ) -> Profile:
        """Record a profile whose boxes start from the current disk of a box.

        The service saves the disk as a snapshot without memory; the box does not change. Raises
        what `set_profile` and `create_snapshot` raise; then neither the snapshot nor the profile
        exists.
        """
        require(p, Action.CHANGE_PROFILE)
        require(p, Action.SNAPSHOT_BOX)
        box = await self._directory.resolve(p, ref)
        profile = self._profiles.profile_of(name, box.image, defaults)
        await self._profiles.check_room(p, profile.name)
        snapshot = await self._lifecycle.snapshot(box, None, memory=False)
        profile = replace(
            profile, snapshot=snapshot.id, built_from=f"{snapshot.ref}@{snapshot.name}"
        )
        try:
            await self._profiles.put(p, profile, progress)
        except BaseException:
            await self._lifecycle.snapshots.remove(snapshot)
            raise
        return profile
