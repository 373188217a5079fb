"""What an owner has and uses, beside what it may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Stat:
    """One figure. `unit` is that of `used` and `limit`: `bytes`, `s`, `%`, or empty for counts.

    None: not known, or no limit. `of` tells which one where there are several.
    """

    what: str
    used: float | None
    limit: float | None = None
    unit: str = ""
    of: str = ""

    def to_json(self) -> dict[str, Any]:
        """The same; `of` only where there are several."""
        told = {"what": self.what, "unit": self.unit, "used": self.used, "limit": self.limit}
        return told | ({"of": self.of} if self.of else {})


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the service takes the caller for, and what that owner has. `workspaces` are the named
    ones, sorted; `busy` those of them that have boxes."""

    fingerprint: str
    tier: str
    boxes: int
    workspaces: tuple[str, ...]
    busy: tuple[str, ...]
    api_keys: int

    def to_json(self) -> dict[str, Any]:
        """What `whoami --json` prints."""
        return {
            "fingerprint": self.fingerprint,
            "tier": self.tier,
            "boxes": self.boxes,
            "workspaces": list(self.workspaces),
            "workspaces_with_boxes": list(self.busy),
            "api_keys": self.api_keys,
        }
