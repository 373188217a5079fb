"""Requests for boxes: which box a caller asks for, and how the daemon creates a missing one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from boxd.secret import random_hex

if TYPE_CHECKING:
    from datetime import timedelta

    from boxd.names.spec import BoxSpec


@dataclass(frozen=True, slots=True)
class BoxRequest:
    """The box that a spec names, in a workspace of an owner (None: the default workspace).

    `default_ttl` is the time to live of a new box if neither its spec nor its profile has one.
    `ephemeral`: the daemon removes a new box with its last hold; None: only if the spec is
    anonymous. `durable`: the daemon never removes the box for being unused; None: a new box is not
    durable, an existing box stays as it is.
    """

    owner: str
    workspace: str | None
    spec: BoxSpec
    default_ttl: timedelta | None = None
    ephemeral: bool | None = None
    durable: bool | None = None

    def resolved(self) -> BoxRequest:
        """Return the request with a random name for an anonymous spec, and `ephemeral` decided."""
        ephemeral = self.spec.anonymous if self.ephemeral is None else self.ephemeral
        if not self.spec.anonymous:
            return replace(self, ephemeral=ephemeral)
        spec = replace(self.spec, name=f"tmp-{random_hex(5)}")
        return replace(self, spec=spec, ephemeral=ephemeral)
