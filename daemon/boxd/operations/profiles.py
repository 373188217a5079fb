"""Box profiles: an image with defaults, under a name that the owner chooses.

A profile applies in all workspaces of its owner. A scoped credential can list and use profiles, and
cannot change them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.backends.network.egress import parse_egress
from boxd.errors import (
    BadName,
    BadRequest,
    Conflict,
    NotFound,
    QuotaExceeded,
    Unavailable,
    UnknownImage,
)
from boxd.model.profile import NO_DEFAULTS, Profile
from boxd.model.progress import SILENT
from boxd.names.spec import parse_spec
from boxd.names.words import fold, parse_name, shown

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.boxes.state.interface import Catalog
    from boxd.model.profile import ProfileDefaults
    from boxd.model.progress import Progress
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

MAX_PROFILES = 100
"""Maximum number of profiles of one owner."""


class ProfileOperations:
    """Records, lists and removes profiles. Holds no state."""

    def __init__(self, store: ControlStore, catalog: Catalog, lifecycle: Lifecycle) -> None:
        self._store = store
        self._catalog = catalog
        self._lifecycle = lifecycle

    async def set_profile(
        self,
        p: Principal,
        name: str,
        image: str,
        defaults: ProfileDefaults = NO_DEFAULTS,
        progress: Progress = SILENT,
    ) -> Profile:
        """Record a profile; it replaces an older one of the same name.

        Raises BadName; UnknownImage for the image or flavor; BadRequest for the egress list;
        QuotaExceeded.
        """
        require(p, Action.CHANGE_PROFILE)
        profile = self.profile_of(name, image, defaults)
        await self.put(p, profile, progress)
        return profile

    def profile_of(self, name: str, image: str, defaults: ProfileDefaults) -> Profile:
        """Return a profile that the catalog allows. Raises what `set_profile` raises."""
        flavors = {one.name for one in self._catalog.flavors()}
        name = parse_name(name, "profile name")
        if name in flavors:
            raise BadRequest(f"{name!r} is a flavor: choose another name for the profile")
        flavor, egress = defaults.flavor, defaults.egress
        if flavor is not None and (flavor := fold(flavor)) not in flavors:
            raise UnknownImage(f"no flavor {shown(flavor)}; known: {', '.join(sorted(flavors))}")
        policy = None if egress is None else str(parse_egress(egress))
        defaults = replace(defaults, flavor=flavor, egress=policy)
        return Profile(name, self._image(image, flavors), defaults)

    async def check_room(self, p: Principal, name: str) -> None:
        """Raise QuotaExceeded if the owner cannot have another profile of that name."""
        present = {one.name for one in await self._store.profiles(p.owner)}
        if len(present | {name}) > MAX_PROFILES:
            raise QuotaExceeded(
                f"limit reached: {MAX_PROFILES} profiles per owner; remove one: profiles rm NAME"
            )

    async def put(self, p: Principal, profile: Profile, progress: Progress) -> None:
        """Record a profile, as `set_profile`, without authorization. Raises QuotaExceeded."""
        await self.check_room(p, profile.name)
        await self._store.put_profile(p.owner, profile)
        if profile.name in {one.name for one in self._catalog.images()}:
            progress.note(
                f"{profile.name} in a box spec now means this profile, not the image of that name"
            )

    async def list_profiles(self, p: Principal) -> list[Profile]:
        """Return the profiles of the owner, by name."""
        require(p, Action.LIST_PROFILES)
        return await self._store.profiles(p.owner)

    async def show_profile(self, p: Principal, name: str) -> Profile:
        """Return one profile. Raises NotFound."""
        require(p, Action.LIST_PROFILES)
        return await self._profile(p, name)

    async def remove_profile(self, p: Principal, name: str) -> Profile:
        """Remove a profile and return it; existing boxes do not change.

        Raises NotFound; Conflict with a workspace whose new boxes use the profile.
        """
        require(p, Action.CHANGE_PROFILE)
        profile = await self._profile(p, name)
        for workspace in await self._store.list_workspaces(p.owner):
            if workspace.profile == profile.name:
                raise Conflict(
                    f"profile {profile.name} is the profile of workspace {workspace.name}; "
                    f"first: ws profile {workspace.name} -"
                )
        await self._store.remove_profile(p.owner, profile.name)
        return profile

    async def _profile(self, p: Principal, name: str) -> Profile:
        for profile in await self._store.profiles(p.owner):
            if profile.name == fold(name):
                return profile
        raise NotFound(f"no profile {shown(name)}; see: profiles ls")

    def _image(self, text: str, flavors: set[str]) -> str:
        """Return an image that boxes can start from, now or after it is built."""
        try:
            spec = parse_spec(f"box:{text}", flavors)
        except BadName as error:
            raise BadRequest(f"image {shown(text)}: {error}") from None
        if spec.image != text:
            raise BadRequest(f"image {shown(text)} is not valid: give one name that `images` lists")
        with suppress(Unavailable):  # not built yet: creating a box reports that again
            self._lifecycle.check_image(text)
        return text
