"""Box profiles: an image, a flavor and defaults under one name. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class ProfileDefaults:
    """Default settings for new boxes. None: no such default.

    `ttl` is the time from creation to the deadline of a box. `grace` is the time for which a box
    stays unchanged after the last detach. `egress` is `all`, `none`, or a list of names and
    networks. `durable`: elapsed time never removes a box.
    """

    flavor: str | None = None
    ttl: timedelta | None = None
    grace: timedelta | None = None
    egress: str | None = None
    durable: bool = False


NO_DEFAULTS = ProfileDefaults()
"""For profiles that name only an image."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A named image of an owner with default settings.

    A built profile starts boxes from the disk of an earlier box. `snapshot` is the id of the
    snapshot, and `built_from` is the owner's reference to it.
    """

    name: str
    image: str
    defaults: ProfileDefaults = NO_DEFAULTS
    snapshot: str | None = None
    built_from: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form: `lifetime_s` is the grace, `deadline_s` the ttl of new boxes."""
        defaults = self.defaults
        return {
            "name": self.name,
            "image": self.image,
            "flavor": defaults.flavor,
            "lifetime_s": None if defaults.grace is None else defaults.grace.total_seconds(),
            "deadline_s": None if defaults.ttl is None else defaults.ttl.total_seconds(),
            "egress": defaults.egress,
            "durable": defaults.durable,
            "built_from": self.built_from,
        }
