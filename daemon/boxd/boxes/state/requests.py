"""Requests for boxes: which box a caller asks for, and how the daemon creates a missing one."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Literal

from boxd.secret import random_hex

if TYPE_CHECKING:
    from datetime import timedelta

    from boxd.model.box import Box
    from boxd.names.spec import BoxSpec


@dataclass(frozen=True, slots=True)
class BoxAccess:
    """A request to attach a caller to a box, from SSH, HTTP or MCP.

    `target` is text of the caller. A `spec` creates a missing box, a `reference` never does; both
    wake a suspended box. A Box is one that a reference of the same caller has already resolved to.
    `why` is the reason that `ls` shows, such as "shell". `ws` is the workspace for a target without
    one; None: the default workspace of the credential.

    `secrets`: sessions in the box get the owner's secrets in their environment. `relay` is the
    public key of a client of the box's own SSH server; a new box is then confidential.

    Two fields concern a box that this request creates. `run_box`: without a deadline in its spec or
    profile, the box gets the tier's deadline for commands. `ephemeral`: the daemon removes the box
    with its last hold; None: only if the spec is anonymous.
    """

    target: str | Box
    _: KW_ONLY
    kind: Literal["spec", "reference"]
    why: str
    ws: str | None = None
    secrets: bool = True
    relay: str | None = None
    run_box: bool = False
    ephemeral: bool | None = None


@dataclass(frozen=True, slots=True)
class BoxRequest:
    """The box that a spec names, in a workspace of an owner (None: the default workspace).

    `default_ttl` is the time to live of a new box if neither its spec nor its profile has one.
    `ephemeral`: the daemon removes a new box with its last hold; None: only if the spec is
    anonymous. `durable`: the daemon never removes the box for being unused; None: the spec and its
    profile decide for a new box, and an existing box changes only by the `!` of a spec.
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
