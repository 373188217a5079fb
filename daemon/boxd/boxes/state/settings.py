"""Settings of a box: the one place that merges spec, profile, tier and service. Pure functions.

The first source that names a value decides::

    image     the profile that the spec names, the spec, the workspace's profile, the service
              (`--default-image`)
    flavor    the spec, the profile, the catalog's default
    deadline  the spec (^ttl), the profile, the verb (boxes that exec creates: the tier's);
              at most the tier's ceiling
    grace     the spec (+duration), the profile, the service (`--grace`); at most the policy's
    egress    the profile, the service
    disk      the flavor, the tier
    durable   the spec (!), the verb (`up --durable`), the profile; otherwise false. A durable box
              gets no deadline from the verb

An existing box takes only the grace period and `!` from a spec. The daemon rejects a spec that
names a profile, image or flavor that the box was not created from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.boxes.timing.policy import SHIPPED, Policy
from boxd.errors import BadRequest, Conflict, Forbidden, UnknownImage
from boxd.model.profile import Profile
from boxd.names.duration import format_duration
from boxd.names.words import fold, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from boxd.boxes.state.interface import Catalog
    from boxd.model.box import Box
    from boxd.model.catalog import Flavor
    from boxd.names.spec import BoxSpec


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults and limits of the service for a new box.

    `deadline_max` is the ceiling of the owner's tier for `^ttl`, counted from creation. `disk_mb`
    is the size of the writable disk that the tier gives a box (0: no limit). `tier` is the name of
    the owner's tier.
    """

    image: str
    backend: str
    drive: bool
    deadline_max: timedelta
    policy: Policy = SHIPPED
    egress: str = "all"
    disk_mb: int = 0
    tier: str = "default"


@dataclass(frozen=True, slots=True)
class Shortened:
    """A duration that was clamped to `maximum`. `sign` precedes it in a spec.

    `profile` is the profile that requested `asked`; empty if the spec did.
    """

    what: str
    sign: str
    asked: timedelta
    maximum: timedelta
    profile: str = ""

    def note(self, ref: str) -> str:
        """Return the note for the owner of the box with the reference `ref`."""
        asked = f"{self.what} {self.sign}{format_duration(self.asked)}"
        origin = f" of profile {self.profile}" if self.profile else ""
        maximum = f"{self.sign}{format_duration(self.maximum)}"
        return f"{asked}{origin} shortened: the maximum for box {ref} is {maximum}"


@dataclass(frozen=True, slots=True)
class BoxSettings:
    """The settings of a new box.

    `ttl` counts from creation, `grace` from the last detach. `profile` is empty if the box has
    none. `shortened` lists durations below those that the spec or the profile requested.
    """

    image: str
    flavor: Flavor
    ttl: timedelta | None
    grace: timedelta | None
    egress: str
    disk_mb: int
    drive: bool
    backend: str
    profile: str
    durable: bool = False
    shortened: tuple[Shortened, ...] = ()


@dataclass(frozen=True, slots=True)
class Renewal:
    """The changes that a spec makes to an existing box. None: no change.

    `notes` are lines for users about ignored and clamped values, and about a change of `durable`.
    """

    grace: timedelta | None
    notes: tuple[str, ...]
    durable: bool | None = None


def box_settings(
    spec: BoxSpec,
    defaults: Defaults,
    catalog: Catalog,
    *,
    profile: Profile | None = None,
    default_ttl: timedelta | None = None,
    durable: bool | None = None,
    ephemeral: bool = False,
) -> BoxSettings:
    """Return the settings of a new box.

    Raises UnknownImage, which names the known flavors; BadRequest if a box that is removed with its
    last hold (`ephemeral`) is to be durable.

    Raises Forbidden for a flavor that the owner's tier may not use. `profile` is the one that the
    spec's image names, or the workspace's if the spec names no image. A profile takes precedence
    over a catalog image of its name. `default_ttl` is the deadline of the verb if neither spec nor
    profile has one; clamping it is not reported. `durable` is the choice of the verb.
    """
    source = profile or Profile("", spec.image or defaults.image)
    preset = source.defaults
    flavor = _flavor(catalog, spec.flavor or preset.flavor, "" if spec.flavor else source.name)
    check_tier(catalog, flavor.name, defaults.tier)
    ttl, ttl_max = spec.ttl or preset.ttl, defaults.deadline_max
    grace, grace_max = spec.grace or preset.grace, defaults.policy.grace_max
    stated = spec.durable or durable
    if stated and ephemeral:
        raise BadRequest(
            f"box {spec.name} cannot be durable, because it is created for one task and removed "
            "after it: omit the '!', or keep the box after the task (keep)"
        )
    lasting = not ephemeral and bool(preset.durable if stated is None else stated)
    return BoxSettings(
        image=source.image,
        flavor=flavor,
        ttl=_at_most(ttl_max, ttl or (None if lasting else default_ttl)),
        grace=_at_most(grace_max, grace or defaults.policy.grace),
        egress=preset.egress or defaults.egress,
        disk_mb=flavor.disk_mb or defaults.disk_mb,
        # Many runtimes hide the box's mounts from the host; the owner can try it in the box.
        drive=defaults.drive and not flavor.runtime,
        backend=defaults.backend,
        profile=source.name,
        durable=lasting,
        shortened=(
            *_shortened("deadline", "^", ttl, ttl_max, "" if spec.ttl else source.name),
            *_shortened("grace", "+", grace, grace_max, "" if spec.grace else source.name),
        ),
    )


def renewed(
    spec: BoxSpec,
    box: Box,
    defaults: Defaults,
    *,
    profile: Profile | None = None,
    durable: bool | None = None,
) -> Renewal:
    """Return the changes that a spec and a verb make to an existing box, with notes for users.

    Raises Conflict if the spec names a profile, image or flavor that the box was not created from,
    and BadRequest if an ephemeral box is to be durable. The other defaults of a profile apply only
    at creation. `durable` is the choice of the verb.
    """
    _check_same(spec, box, profile)
    lasting = True if spec.durable else durable
    if lasting:
        check_lasting(box)
    notes = []
    if spec.durable and not box.durable:
        notes.append(f"box {box.ref} is durable now: it is removed only by rm, or at its deadline")
    if spec.ttl is not None:
        ignored = f"deadline ^{format_duration(spec.ttl)}"
        notes.append(f"{ignored} ignored: box {box.ref} exists; {box.name}+ recreates it")
    grace_max = defaults.policy.grace_max
    notes.extend(one.note(box.ref) for one in _shortened("grace", "+", spec.grace, grace_max))
    grace = _at_most(grace_max, spec.grace)
    return Renewal(
        None if grace == box.grace else grace,
        tuple(notes),
        None if lasting == box.durable else lasting,
    )


def check_tier(catalog: Catalog, flavor: str, tier: str) -> None:
    """Raise Forbidden if owners of a tier may not use a flavor. An unknown flavor passes."""
    for one in catalog.flavors():
        if one.name == flavor and one.tiers and tier not in one.tiers:
            raise Forbidden(
                f"flavor {flavor} is not for your tier ({tier}), only for "
                f"{', '.join(one.tiers)}; use another flavor, or ask the operator"
            )


def profile_of(name: str, profiles: Sequence[Profile]) -> Profile | None:
    """Return the profile with this name, in any case, or None.

    In a spec, the name takes the place of an image.
    """
    return next((profile for profile in profiles if profile.name == fold(name)), None)


def check_lasting(box: Box) -> None:
    """Raise BadRequest if the box cannot become durable."""
    if box.ephemeral:
        raise BadRequest(
            f"box {box.ref} cannot be durable: it is removed when its last session ends. "
            f"To keep its state, copy it: snapshot fork {box.ref} NAME"
        )


def _check_same(spec: BoxSpec, box: Box, profile: Profile | None) -> None:
    """Raise Conflict if the spec names a source or flavor that the box was not created from."""
    differences = []
    if spec.image is not None:
        differences.extend(_other_source(spec.image, box, profile))
    if spec.flavor is not None and spec.flavor != box.flavor:
        differences.append(
            f"its flavor is {shown(box.flavor)}, the spec names {shown(spec.flavor)}"
        )
    if differences:
        raise Conflict(
            f"box {box.ref} exists: {'; '.join(differences)}. "
            f"Use {box.ref} for the box as it is, or {box.ref}+ with the rest to recreate it"
        )


def _other_source(source: str, box: Box, profile: Profile | None) -> list[str]:
    """Return how a profile or image of a spec differs from what the box was created from.

    A removed profile still matches its boxes by name. A box whose profile is unknown is compared by
    its image.
    """
    image = source if profile is None else profile.image
    if profile is None and box.profile and fold(source) == box.profile:
        return []
    name = "" if profile is None else profile.name
    same_profile = box.profile is None or box.profile == name
    if same_profile and image == box.image:
        return []
    actual = f"its image is {shown(box.image)}"
    if box.profile and not same_profile:
        actual = f"its profile is {box.profile} with image {shown(box.image)}"
    elif image == box.image:
        actual += " without a profile"
    asked = shown(image) if profile is None else f"profile {name} with image {shown(image)}"
    return [f"{actual}, the spec names {asked}"]


def _at_most(most: timedelta, value: timedelta | None) -> timedelta | None:
    return None if value is None else min(value, most)


def _shortened(
    what: str, sign: str, asked: timedelta | None, most: timedelta, profile: str = ""
) -> list[Shortened]:
    if asked is None or asked <= most:
        return []
    return [Shortened(what, sign, asked, most, profile)]


def _flavor(catalog: Catalog, name: str | None, profile: str) -> Flavor:
    """Return a flavor. `profile` is the profile that requested it, or empty.

    The flavor of a profile may have been removed from the catalog.
    """
    if name is None:
        return catalog.default_flavor
    flavors = {flavor.name: flavor for flavor in catalog.flavors()}
    if name not in flavors:
        source = f"profile {profile}: " if profile else ""
        raise UnknownImage(f"{source}no flavor {shown(name)}; known: {', '.join(flavors)}")
    return flavors[name]
