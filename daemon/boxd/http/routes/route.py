"""Protocol adapter only. What a route is, and which paths it matches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.http.middleware.cors import PREFLIGHT, Origins

if TYPE_CHECKING:
    from starlette.types import ASGIApp

REST = "..."
"""Ends the name of a parameter that takes all remaining segments: `{path...}`."""


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the API, as `Api.routes` lists it."""

    path: str
    methods: tuple[str, ...]
    """HTTP methods that the path supports; empty: all."""
    public: bool = False
    """Whether requests need no key."""
    socket: bool = False
    """Whether the path accepts WebSockets."""
    http: bool = True
    """Whether the path accepts plain HTTP requests."""


@dataclass(frozen=True, slots=True)
class StreamRoute:
    """A path that a plain ASGI endpoint serves.

    `template` is compared segment by segment with the decoded path, in which `%2F` is not a slash.
    The endpoint reads parameters from the raw path itself.
    """

    template: str
    endpoint: ASGIApp
    methods: tuple[str, ...] = ()
    """HTTP methods that the endpoint supports; empty: all."""
    http: bool = True
    socket: bool = False
    origins: Origins = field(default_factory=lambda: Origins(()))
    """Origins whose pages may use the route. Preflights answer with `methods`, which do not list
    the preflight method itself."""

    @property
    def route(self) -> Route:
        """The route as `Api.routes` lists it."""
        methods = (*self.methods, PREFLIGHT) if self.origins else self.methods
        return Route(self.template, methods, socket=self.socket, http=self.http)

    def matches(self, path: str) -> bool:
        """Return whether a decoded path belongs to this route."""
        return matches(self.template, path)


def matches(template: str, path: str) -> bool:
    """Return whether a decoded path matches a template.

    A parameter matches one segment that is not empty. A last parameter `{name...}` matches any
    number of segments; with none, the slash before it may be missing too.
    """
    parts, segments = template.split("/"), path.split("/")
    open_ended = parts[-1].endswith(REST + "}")
    if open_ended:
        parts.pop()
    if len(segments) < len(parts) or (len(segments) > len(parts) and not open_ended):
        return False
    return all(
        segment if part.startswith("{") else segment == part
        for part, segment in zip(parts, segments, strict=False)
    )
