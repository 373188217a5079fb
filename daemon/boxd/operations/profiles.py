"""Box profiles: an image with defaults under a name of the owner's (product spec, section 2.3).

They are the owner's in all workspaces. A scoped credential sees and uses them and changes none.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.backends.egress import parse_egress
from boxd.errors import (
    BadName,
    BadRequest,
    Conflict,
    NotFound,
    QuotaExceeded,
    Unavailable,
    UnknownImage,
)
from boxd.model.profile import Profile
from boxd.names.spec import parse_spec
from boxd.names.words import fold, parse_name, shown
from boxd.operations.core import Core

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from boxd.principal import Principal

MAX_PROFILES = 100
"""Profiles of one owner."""


class ProfileOperations(Core):
    """See the module."""

    async def set_profile(
        self,
        p: Principal,
        name: str,
        *,
        image: str,
        flavor: str | None = None,
        ttl: timedelta | None = None,
        grace: timedelta | None = None,
        egress: str | None = None,
        notes: Callable[[str], None] | None = None,
    ) -> Profile:
        """Records a profile in the place of an older one of its name; see `Profile`.

        `notes` gets lines for people. Raises BadName, UnknownImage for image and flavor, BadRequest
        for the egress list.
        """
        require(p, Action.CHANGE_PROFILE)
        profile = self._profile_of(
            *(name, image), flavor=flavor, ttl=ttl, grace=grace, egress=egress
        )
        await self._put_profile(p, profile, notes)
        return profile

    def _profile_of(
        self,
        name: str,
        image: str,
        *,
        flavor: str | None,
        ttl: timedelta | None,
        grace: timedelta | None,
        egress: str | None,
    ) -> Profile:
        flavors = {one.name for one in self._catalog.flavors()}
        name = parse_name(name, "profile name")
        if name in flavors:
            raise BadRequest(f"{name!r} is a flavor: choose another name for the profile")
        if flavor is not None and (flavor := fold(flavor)) not in flavors:
            raise UnknownImage(f"no flavor {shown(flavor)}; known: {', '.join(sorted(flavors))}")
        policy = None if egress is None else str(parse_egress(egress))
        return Profile(name, self._image(image, flavors), flavor, ttl, grace, policy)

    async def _check_room(self, p: Principal, name: str) -> None:
        present = {one.name for one in await self._store.profiles(p.owner)}
        if len(present | {name}) > MAX_PROFILES:
            raise QuotaExceeded(
                f"limit reached: {MAX_PROFILES} profiles per owner; remove one: profiles rm NAME"
            )

    async def _put_profile(
        self, p: Principal, profile: Profile, notes: Callable[[str], None] | None
    ) -> None:
        await self._check_room(p, profile.name)
        await self._store.put_profile(p.owner, profile)
        if notes is not None and profile.name in {one.name for one in self._catalog.images()}:
            notes(
                f"{profile.name} in a box spec now means this profile, not the image of that name"
            )

    async def list_profiles(self, p: Principal) -> list[Profile]:
        """The profiles of the owner, by name."""
        require(p, Action.LIST_PROFILES)
        return await self._store.profiles(p.owner)

    async def show_profile(self, p: Principal, name: str) -> Profile:
        """One profile. NotFound."""
        require(p, Action.LIST_PROFILES)
        return await self._profile(p, name)

    async def remove_profile(self, p: Principal, name: str) -> Profile:
        """Forgets a profile; boxes made with it stay as they are. Returns what it was.

        NotFound; Conflict naming a workspace whose boxes are made with it.
        """
        require(p, Action.CHANGE_PROFILE)
        profile = await self._profile(p, name)
        for workspace in await self._store.list_workspaces(p.owner):
            if workspace.profile == profile.name:
                raise Conflict(
                    f"profile {profile.name} is that of workspace {workspace.name}; "
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
        """An image that boxes can start from, now or once it is built."""
        try:
            spec = parse_spec(f"box:{text}", flavors)
        except BadName as error:
            raise BadRequest(f"image {shown(text)}: {error}") from None
        if spec.image != text:
            raise BadRequest(f"image {shown(text)} is not valid: an image alone, as `images` shows")
        with suppress(Unavailable):  # not built yet: told again when a box is to start from it
            self._lifecycle.check_image(text)
        return text
