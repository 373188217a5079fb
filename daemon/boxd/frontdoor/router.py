"""What a username asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from boxd.errors import BadName, BoxdError, Unsupported
from boxd.names.reference import parse_reference
from boxd.names.spec import BoxSpec, parse_spec
from boxd.names.words import fold

SESSION_PREFIX = "session-"
SHARE_PREFIX = "svcs_"


@dataclass(frozen=True, slots=True)
class ToBox:
    """Sessions and forwardings of a box. `spec` is set when the target may create it."""

    target: str
    spec: BoxSpec | None

    @property
    def kind(self) -> Literal["spec", "reference"]:
        """How the target is to be read."""
        return "reference" if self.spec is None else "spec"

    @property
    def once(self) -> bool:
        """The target makes a new box each time it is used, so a connection uses it only once."""
        return self.spec is not None and (self.spec.fresh or self.spec.anonymous)


@dataclass(frozen=True, slots=True)
class ToText:
    """Text only: the image catalog, the management CLI, or its help."""

    what: Literal["images", "cli", "help"]


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing can be done for this username; `error` says why."""

    error: BoxdError


Route: TypeAlias = ToBox | ToText | Refused


def route(username: str, flavors: frozenset[str]) -> Route:
    """Reads a username; `flavors` are the known ones."""
    word = fold(username)
    if word in ("images", "image"):
        return ToText("images")
    if word == "cli":
        return ToText("cli")
    if word == "help":
        return ToText("help")
    if word in ("sudo", "jump") or word.startswith(SHARE_PREFIX):
        name = "svcs_..." if word.startswith(SHARE_PREFIX) else word
        return Refused(Unsupported(f"the user {name!r} is reserved and not served by this host"))
    try:
        if word.startswith(SESSION_PREFIX):
            reference = word.removeprefix(SESSION_PREFIX)
            parse_reference(reference)
            return ToBox(reference, None)
        return ToBox(username, parse_spec(username, flavors, allow_anonymous=True))
    except BadName as error:
        return Refused(error)
