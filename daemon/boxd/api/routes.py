"""Protocol adapter only. Paths that are served by plain ASGI, and how they are recognised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.api.origins import PREFLIGHT, Origins

if TYPE_CHECKING:
    from starlette.types import ASGIApp

REST = "..."
"""End of the name of a parameter that takes all further segments, `{path...}`."""


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the API. `public` ones need no key; no `methods`: any."""

    path: str
    methods: tuple[str, ...]
    public: bool = False
    socket: bool = False
    """Whether it takes WebSockets."""
    http: bool = True
    """Whether it takes requests that are none."""


@dataclass(frozen=True, slots=True)
class StreamRoute:
    """A path that plain ASGI serves. `template` is compared segment by segment with the decoded
    path, in which `%2F` is no slash; the endpoint reads parameters from the raw path itself.
    """

    template: str
    endpoint: ASGIApp
    methods: tuple[str, ...] = ()
    """HTTP methods that are served, or any."""
    http: bool = True
    socket: bool = False
    origins: Origins = field(default_factory=lambda: Origins(()))
    """Pages of other origins that may use it; of `methods`, which preflights are not among."""

    @property
    def route(self) -> Route:
        """As it is listed."""
        methods = (*self.methods, PREFLIGHT) if self.origins else self.methods
        return Route(self.template, methods, socket=self.socket, http=self.http)

    def matches(self, path: str) -> bool:
        """Whether a decoded path belongs here; a rest may be missing with its slash."""
        wanted, found = self.template.split("/"), path.split("/")
        open_ended = wanted[-1].endswith(REST + "}")
        if open_ended:
            wanted.pop()
        if len(found) < len(wanted) or (len(found) > len(wanted) and not open_ended):
            return False
        return all(
            segment if part.startswith("{") else segment == part
            for part, segment in zip(wanted, found, strict=False)
        )
