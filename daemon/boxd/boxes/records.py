"""New box records, and what a spec may change in an existing one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import UnknownImage
from boxd.model.box import Box, BoxState
from boxd.names.duration import format_duration
from boxd.names.words import shown
from boxd.secret import random_hex

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from boxd.boxes.interface import Catalog
    from boxd.model.catalog import Flavor
    from boxd.names.spec import BoxSpec


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a new box gets when its spec does not say, and the longest deadline of its owner."""

    image: str
    backend: str
    drive: bool
    deadline_max: timedelta


def new_box(
    owner: str,
    workspace: str | None,
    spec: BoxSpec,
    *,
    catalog: Catalog,
    defaults: Defaults,
    host_key: str,
    now: datetime,
    ephemeral: bool,
) -> Box:
    """The record of a box about to be made.

    Raises UnknownImage naming the known ones; Unavailable when the image is not built.
    """
    image = spec.image or defaults.image
    catalog.rootfs(image)
    flavor = _flavor(catalog, spec.flavor)
    ttl = None if spec.ttl is None else min(spec.ttl, defaults.deadline_max)
    return Box(
        id=random_hex(16),
        owner=owner,
        workspace=workspace,
        name=spec.name,
        image=image,
        flavor=flavor.name,
        cpus=flavor.cpus,
        mem_mb=flavor.mem_mb,
        state=BoxState.CREATING,
        detail="",
        backend=defaults.backend,
        host_key=host_key,
        created=now,
        deadline=None if ttl is None else now + ttl,
        grace=spec.grace,
        ephemeral=ephemeral,
        drive=defaults.drive,
    )


def ignored_note(box: Box, spec: BoxSpec) -> str | None:
    """What an existing box does not take from a spec, for people; None when nothing."""
    ignored = []
    if spec.image is not None and spec.image != box.image:
        ignored.append(f"image {spec.image}")
    if spec.flavor is not None and spec.flavor != box.flavor:
        ignored.append(f"flavor {spec.flavor}")
    if spec.ttl is not None:
        ignored.append(f"deadline ^{format_duration(spec.ttl)}")
    if not ignored:
        return None
    return f"{', '.join(ignored)} ignored: box {box.ref} exists; {box.name}+ makes it anew"


def clamped_note(box: Box, spec: BoxSpec) -> str | None:
    """What a new box got less than its spec asked for, for people; None when nothing."""
    if spec.ttl is None or box.deadline is None or box.deadline - box.created >= spec.ttl:
        return None
    given = format_duration(box.deadline - box.created)
    return f"deadline ^{format_duration(spec.ttl)} shortened: box {box.ref} gets the most, ^{given}"


def _flavor(catalog: Catalog, name: str | None) -> Flavor:
    if name is None:
        return catalog.default_flavor
    flavors = {flavor.name: flavor for flavor in catalog.flavors()}
    if name not in flavors:
        raise UnknownImage(f"no flavor {shown(name)}; known: {', '.join(flavors)}")
    return flavors[name]
