"""Figures about an owner: objects, usage and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Stat:
    """One figure. `unit` is the unit of `used` and `limit`: `bytes`, `s`, `%`, or empty for counts.

    `used` None: unknown. `limit` None: no limit. `of` distinguishes several figures of one kind.
    """

    what: str
    used: float | None
    limit: float | None = None
    unit: str = ""
    of: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, which has `of` only if `of` is not empty."""
        form = {"what": self.what, "unit": self.unit, "used": self.used, "limit": self.limit}
        return form | ({"of": self.of} if self.of else {})


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of the caller, and the owner's objects.

    `fingerprint` names the account. `key` is the fingerprint of the SSH key of this login; None:
    the caller has another credential. `name` is the display name; None: the account has none.

    `workspaces` are the named workspaces, sorted. `busy` are those with boxes. `api_keys` None: the
    credential may not list keys. `scope` is the workspace of a scoped credential.
    """

    fingerprint: str
    tier: str
    boxes: int
    workspaces: tuple[str, ...]
    busy: tuple[str, ...]
    api_keys: int | None
    scope: str | None = None
    key: str | None = None
    name: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `whoami --json` prints."""
        return {
            "fingerprint": self.fingerprint,
            "key": self.key,
            "name": self.name,
            "tier": self.tier,
            "boxes": self.boxes,
            "workspaces": list(self.workspaces),
            "workspaces_with_boxes": list(self.busy),
            "api_keys": self.api_keys,
            "scope": self.scope,
        }
