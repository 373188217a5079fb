"""Resources: what they are called, what they hold, and which of them a change is about."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.boxes.state import feed
from boxd.errors import NotFound
from boxd.mcp.tools.boxes import fleet_of
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.operations import Operations
    from boxd.principal import Principal

SCHEME = "svc://"
FLEET = "svc://fleet"
ASKS = "svc://asks"
SURFACES = "svc://surfaces"
SURFACE = SURFACES + "/"
"""Before the id of a canvas."""
JSON = "application/json"
_CANVAS = re.compile(re.escape(SURFACE) + r"[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Listed:
    """A resource as it is listed."""

    uri: str
    name: str
    about: str
    mime: str = JSON


@dataclass(frozen=True, slots=True)
class Content:
    """What a resource holds."""

    uri: str
    text: str
    mime: str = JSON


ALWAYS = (
    Listed(FLEET, "fleet", "Your boxes, and the open questions of programs in them."),
    Listed(ASKS, "asks", "The open questions alone."),
    Listed(SURFACES, "surfaces", "The documents that are shown to you."),
)
"""Those that everyone has."""


TEMPLATES = ((SURFACE + "{id}", "surface", "One document that is shown to you."),)
"""How those are called that come and go: template, name, description."""


async def listing(operations: Operations, principal: Principal) -> list[Listed]:
    """All that the principal may read."""
    canvases = await operations.canvases.list_canvases(principal)
    return [
        *ALWAYS,
        *(Listed(one.uri, one.id, one.title or "A document.", one.mime) for one in canvases),
    ]


async def content(operations: Operations, principal: Principal, uri: str, seq: int) -> Content:
    """What a resource holds now; `seq` rises with each reading. NotFound."""
    found: dict[str, Any]
    if uri == FLEET:
        found = await fleet_of(operations, principal)
    elif uri == ASKS:
        asks = await operations.asks.list_asks(principal)
        found = {"asks": [ask.to_json() for ask in asks]}
    elif uri == SURFACES:
        canvases = await operations.canvases.list_canvases(principal)
        found = {"surfaces": [canvas.to_json() for canvas in canvases]}
    elif uri.startswith(SURFACE):
        canvas, text = await operations.canvases.read_canvas(principal, uri.removeprefix(SURFACE))
        return Content(uri, text, canvas.mime)
    else:
        raise missing(uri)
    return Content(uri, json.dumps({"seq": seq} | found))


def known(uri: str) -> bool:
    """Whether a resource can be called so."""
    return uri in (FLEET, ASKS, SURFACES) or _CANVAS.fullmatch(uri) is not None


def missing(uri: str) -> NotFound:
    """There is no such resource, or not for this principal."""
    return NotFound(f"no resource {shown(uri)}; see: resources/list")


def touched(topics: Iterable[str], wanted: Iterable[str]) -> set[str]:
    """Which of the resources that somebody wants to hear of have changed, by the feed's topics."""
    told = set(topics)
    return {uri for uri in wanted if told & _topics(uri)}


def lists_changed(topics: Iterable[str]) -> bool:
    """Whether other resources may be there than before."""
    return feed.SURFACES in topics


def _topics(uri: str) -> set[str]:
    if uri == FLEET:
        return {feed.FLEET, feed.ASKS}
    topics = {uri.removeprefix(SCHEME)}
    return topics | {feed.ANY_SURFACE} if uri.startswith(SURFACE) else topics
