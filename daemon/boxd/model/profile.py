"""Box profiles (product spec, section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Profile:
    """An image with defaults under a name of the owner's; None is "not said".

    `ttl` is the profile's deadline, counted from creation, `grace` its lifetime after the last
    detach. `egress` is `all`, `none`, or a list of names and networks.

    One that was built starts boxes from the disk that a box had: `snapshot` is the id of what was
    kept of it, `built_from` how its owner addresses that.
    """

    name: str
    image: str
    flavor: str | None = None
    ttl: timedelta | None = None
    grace: timedelta | None = None
    egress: str | None = None
    snapshot: str | None = None
    built_from: str | None = None
