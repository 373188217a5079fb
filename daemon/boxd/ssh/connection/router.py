"""Routes: what the user name of a connection asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from boxd.errors import BadName, BoxdError
from boxd.names.reference import parse_reference
from boxd.names.spec import BoxSpec, parse_spec
from boxd.names.words import SHARE_PREFIX, fold
from boxd.secret import Secret
from boxd.ssh.connection.auth import ADMIN_USER

SESSION_PREFIX = "session-"


@dataclass(frozen=True, slots=True)
class BoxRoute:
    """Sessions and forwardings of a box. With a `spec`, the connection may create the box."""

    target: str
    """A box spec, or a box reference if `spec` is None."""
    spec: BoxSpec | None

    @property
    def kind(self) -> Literal["spec", "reference"]:
        """The syntax of `target`."""
        return "reference" if self.spec is None else "spec"

    @property
    def creates_new_box(self) -> bool:
        """Whether each use of the spec creates a new box; a connection then uses it only once."""
        return self.spec is not None and (self.spec.fresh or self.spec.anonymous)


@dataclass(frozen=True, slots=True)
class TextRoute:
    """Sessions that the daemon answers: the image catalog, the management CLI, or its help."""

    topic: Literal["images", "cli", "help"]


@dataclass(frozen=True, slots=True)
class JumpRoute:
    """Forwardings to the SSH servers inside confidential boxes (`ssh -J`), and no sessions."""

    user: ClassVar[str] = "jump"


@dataclass(frozen=True, slots=True)
class ShareRoute:
    """Sessions and forwardings of the box that a share's token opens. The token is unchecked."""

    token: Secret


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """The administrators' console."""

    user: ClassVar[str] = ADMIN_USER


@dataclass(frozen=True, slots=True)
class InvalidRoute:
    """A user name without a meaning; `error` is the reason."""

    error: BoxdError


Route: TypeAlias = BoxRoute | TextRoute | JumpRoute | ShareRoute | AdminRoute | InvalidRoute


def route(username: str, flavors: frozenset[str]) -> Route:
    """Return the route of a user name; `flavors` are the names of the known flavors."""
    word = fold(username)
    if word in ("images", "image"):
        return TextRoute("images")
    if word == "cli":
        return TextRoute("cli")
    if word == "help":
        return TextRoute("help")
    if word == JumpRoute.user:
        return JumpRoute()
    if word == AdminRoute.user:
        return AdminRoute()
    if word.startswith(SHARE_PREFIX):
        return ShareRoute(Secret(word))
    try:
        if word.startswith(SESSION_PREFIX):
            reference = word.removeprefix(SESSION_PREFIX)
            parse_reference(reference)
            return BoxRoute(reference, None)
        return BoxRoute(username, parse_spec(username, flavors, allow_anonymous=True))
    except BadName as error:
        return InvalidRoute(error)
