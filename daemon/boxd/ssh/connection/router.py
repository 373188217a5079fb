"""What a username asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from boxd.errors import BadName, BoxdError
from boxd.names.reference import parse_reference
from boxd.names.spec import BoxSpec, parse_spec
from boxd.names.words import SHARE_PREFIX, fold
from boxd.secret import Secret
from boxd.ssh.connection.auth import ADMINISTRATOR

SESSION_PREFIX = "session-"


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
class ToRelay:
    """Connections to the SSH server inside a confidential box, and no sessions."""

    user: ClassVar[str] = "jump"


@dataclass(frozen=True, slots=True)
class ToShare:
    """Sessions and forwardings of the one box that `token` is for, if it is for any."""

    token: Secret


@dataclass(frozen=True, slots=True)
class ToSudo:
    """The commands of administrators."""

    user: ClassVar[str] = ADMINISTRATOR


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing can be done for this username; `error` says why."""

    error: BoxdError


Route: TypeAlias = ToBox | ToText | ToRelay | ToShare | ToSudo | Refused


def route(username: str, flavors: frozenset[str]) -> Route:
    """Reads a username; `flavors` are the known ones."""
    word = fold(username)
    if word in ("images", "image"):
        return ToText("images")
    if word == "cli":
        return ToText("cli")
    if word == "help":
        return ToText("help")
    if word == ToRelay.user:
        return ToRelay()
    if word == ToSudo.user:
        return ToSudo()
    if word.startswith(SHARE_PREFIX):
        return ToShare(Secret(word))
    try:
        if word.startswith(SESSION_PREFIX):
            reference = word.removeprefix(SESSION_PREFIX)
            parse_reference(reference)
            return ToBox(reference, None)
        return ToBox(username, parse_spec(username, flavors, allow_anonymous=True))
    except BadName as error:
        return Refused(error)
