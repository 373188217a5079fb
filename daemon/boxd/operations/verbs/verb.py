"""One verb: an operation for users, and the names of it at the interfaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Interface: TypeAlias = Literal["ssh", "http", "mcp"]
INTERFACES: tuple[Interface, ...] = ("ssh", "http", "mcp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One operation. An interface without a name for it has the reason in `missing`."""

    method: str
    """The method that all interfaces call: `family.method` of `Operations`."""
    about: str
    """What the verb does, for the table of verbs."""
    ssh: tuple[str, ...] = ()
    """Commands of `ssh cli@HOST`."""
    http: tuple[str, ...] = ()
    """Routes, each as `METHOD TEMPLATE`."""
    mcp: tuple[str, ...] = ()
    """Tools."""
    missing: tuple[tuple[Interface, str], ...] = ()
    """Why an interface does not have the verb."""

    def names(self, interface: Interface) -> tuple[str, ...]:
        """Return the names of the verb at an interface."""
        return {"ssh": self.ssh, "http": self.http, "mcp": self.mcp}[interface]
