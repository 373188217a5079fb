"""What a box is made with: the only place where spec, profile, tier and service are merged. Pure.

Who says it first decides (product spec, section 2.3)::

    image     the profile that the spec names, the spec, the workspace's profile, the service
              (`--default-image`)
    flavor    the spec, the profile, the catalog's default
    deadline  the spec (^ttl), the profile, the verb (boxes that exec makes: the tier's);
              at most the tier's ceiling
    grace     the spec (+duration), the profile, the service (`--grace`); at most the policy's
    egress    the profile, the service
    disk      the flavor, the tier

An existing box takes from a spec its grace, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.boxes.policy import SHIPPED, Policy
from boxd.errors import UnknownImage
from boxd.model.profile import Profile
from boxd.names.duration import format_duration
from boxd.names.words import fold, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from boxd.boxes.interface import Catalog
    from boxd.model.box import Box
    from boxd.model.catalog import Flavor
    from boxd.names.spec import BoxSpec


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the service gives a box when nobody says otherwise, and what it gives at most.

    `deadline_max` is the ceiling of the owner's tier for `^ttl`, counted from creation, `disk_mb`
    what it gives a box for its writable disk (0: no limit).
    """

    image: str
    backend: str
    drive: bool
    deadline_max: timedelta
    policy: Policy = SHIPPED
    egress: str = "all"
    disk_mb: int = 0


@dataclass(frozen=True, slots=True)
class Shortened:
    """A time that was clamped to `given`. `sign` is what stands before it in a spec.

    `profile` is the one that asked for it; empty when the spec did.
    """

    what: str
    sign: str
    asked: timedelta
    given: timedelta
    profile: str = ""

    def told(self, ref: str) -> str:
        """For people, of the box that is addressed as `ref`."""
        asked = f"{self.what} {self.sign}{format_duration(self.asked)}"
        source = f" of profile {self.profile}" if self.profile else ""
        given = f"{self.sign}{format_duration(self.given)}"
        return f"{asked}{source} shortened: box {ref} gets the most, {given}"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a new box is made with. `ttl` counts from creation, `grace` from the last detach.

    `shortened` tells what is less than the spec or the profile asked for.
    """

    image: str
    flavor: Flavor
    ttl: timedelta | None
    grace: timedelta | None
    egress: str
    disk_mb: int
    drive: bool
    backend: str
    shortened: tuple[Shortened, ...] = ()


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a spec changes in an existing box. `grace` None: it stays as it is.

    `notes` are lines for people about what was ignored or clamped.
    """

    grace: timedelta | None
    notes: tuple[str, ...]


def wished(
    spec: BoxSpec,
    defaults: Defaults,
    catalog: Catalog,
    *,
    profile: Profile | None = None,
    default_ttl: timedelta | None = None,
) -> Wish:
    """What the box of a spec is made with. UnknownImage names the known flavors.

    `profile` is the one that the spec's image names, which wins over a catalog image of its name,
    or that of the workspace where the spec names no image.
    `default_ttl` is the deadline that the verb gives when neither spec nor profile has one; that it
    is clamped too is nobody's news.
    """
    said = profile or Profile("", spec.image or defaults.image)
    flavor = _flavor(catalog, spec.flavor or said.flavor, "" if spec.flavor else said.name)
    ttl, ttl_max = spec.ttl or said.ttl, defaults.deadline_max
    grace, grace_max = spec.grace or said.grace, defaults.policy.grace_max
    return Wish(
        image=said.image,
        flavor=flavor,
        ttl=_at_most(ttl_max, ttl or default_ttl),
        grace=_at_most(grace_max, grace or defaults.policy.grace),
        egress=said.egress or defaults.egress,
        disk_mb=flavor.disk_mb or defaults.disk_mb,
        drive=defaults.drive,
        backend=defaults.backend,
        shortened=(
            *_shortened("deadline", "^", ttl, ttl_max, "" if spec.ttl else said.name),
            *_shortened("grace", "+", grace, grace_max, "" if spec.grace else said.name),
        ),
    )


def renewed(
    spec: BoxSpec, box: Box, defaults: Defaults, *, profile: Profile | None = None
) -> Renewal:
    """What a spec changes in an existing box, and what of it is ignored.

    A profile renews nothing: it is what a box starts from.
    """
    notes = []
    ignored = _ignored(spec, box, profile)
    if ignored:
        notes.append(
            f"{', '.join(ignored)} ignored: box {box.ref} exists; {box.name}+ makes it anew"
        )
    grace_max = defaults.policy.grace_max
    notes.extend(one.told(box.ref) for one in _shortened("grace", "+", spec.grace, grace_max))
    grace = _at_most(grace_max, spec.grace)
    return Renewal(None if grace == box.grace else grace, tuple(notes))


def profile_of(name: str, profiles: Sequence[Profile]) -> Profile | None:
    """The profile of a name that stands in the place of an image, in upper or lower case."""
    return next((profile for profile in profiles if profile.name == fold(name)), None)


def _ignored(spec: BoxSpec, box: Box, profile: Profile | None) -> list[str]:
    """What the spec asks for and the box does not have. A deadline counts from creation: always."""
    ignored = []
    if profile is not None:
        if profile.image != box.image:
            ignored.append(f"profile {profile.name}")
    elif spec.image is not None and spec.image != box.image:
        ignored.append(f"image {spec.image}")
    if spec.flavor is not None and spec.flavor != box.flavor:
        ignored.append(f"flavor {spec.flavor}")
    if spec.ttl is not None:
        ignored.append(f"deadline ^{format_duration(spec.ttl)}")
    return ignored


def _at_most(most: timedelta, value: timedelta | None) -> timedelta | None:
    return None if value is None else min(value, most)


def _shortened(
    what: str, sign: str, asked: timedelta | None, most: timedelta, profile: str = ""
) -> list[Shortened]:
    if asked is None or asked <= most:
        return []
    return [Shortened(what, sign, asked, most, profile)]


def _flavor(catalog: Catalog, name: str | None, profile: str) -> Flavor:
    """`profile` asked for it, unless it is empty: its flavor can have left the catalog since."""
    if name is None:
        return catalog.default_flavor
    flavors = {flavor.name: flavor for flavor in catalog.flavors()}
    if name not in flavors:
        source = f"profile {profile}: " if profile else ""
        raise UnknownImage(f"{source}no flavor {shown(name)}; known: {', '.join(flavors)}")
    return flavors[name]
