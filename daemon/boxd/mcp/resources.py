"""MCP resources: their URIs, their content, and which resources a change affects."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.boxes.state import feed
from boxd.errors import NotFound
from boxd.mcp.tools.boxes.boxes import fleet_json
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
"""The prefix of a canvas URI, before the id of the canvas."""
JSON = "application/json"
_CANVAS_URI = re.compile(re.escape(SURFACE) + r"[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class ResourceEntry:
    """An entry of `resources/list`."""

    uri: str
    name: str
    description: str
    mime: str = JSON


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a resource."""

    uri: str
    text: str
    mime: str = JSON


STATIC_RESOURCES = (
    ResourceEntry(FLEET, "fleet", "Your boxes, and the open questions of programs in them."),
    ResourceEntry(ASKS, "asks", "The open questions only."),
    ResourceEntry(SURFACES, "surfaces", "The list of the documents that are shown to you."),
)
"""The resources that exist for every principal."""


TEMPLATES = ((SURFACE + "{id}", "surface", "One document that is shown to you."),)
"""The URI templates of resources that come and go: template, name, description."""


async def list_resources(operations: Operations, principal: Principal) -> list[ResourceEntry]:
    """Return all resources that the principal may read."""
    canvases = await operations.canvases.list_canvases(principal)
    return [
        *STATIC_RESOURCES,
        *(
            ResourceEntry(canvas.uri, canvas.id, canvas.title or "A document.", canvas.mime)
            for canvas in canvases
        ),
    ]


async def read_resource(
    operations: Operations, principal: Principal, uri: str, seq: int
) -> Content:
    """Return the current content of a resource. `seq` increases with each call.

    Raises NotFound.
    """
    document: dict[str, Any]
    if uri == FLEET:
        document = await fleet_json(operations, principal)
    elif uri == ASKS:
        asks = await operations.asks.list_asks(principal)
        document = {"asks": [ask.to_json() for ask in asks]}
    elif uri == SURFACES:
        canvases = await operations.canvases.list_canvases(principal)
        document = {"surfaces": [canvas.to_json() for canvas in canvases]}
    elif uri.startswith(SURFACE):
        canvas, text = await operations.canvases.read_canvas(principal, uri.removeprefix(SURFACE))
        return Content(uri, text, canvas.mime)
    else:
        raise resource_not_found(uri)
    return Content(uri, json.dumps({"seq": seq} | document))


def is_resource_uri(uri: str) -> bool:
    """Return whether a resource can have this URI."""
    return uri in (FLEET, ASKS, SURFACES) or _CANVAS_URI.fullmatch(uri) is not None


def resource_not_found(uri: str) -> NotFound:
    """Return the error for a resource that does not exist for the principal."""
    return NotFound(f"no resource {shown(uri)}; see: resources/list")


def changed_resources(topics: Iterable[str], watched: Iterable[str]) -> set[str]:
    """Return the watched resources that the feed's topics affect."""
    changed_topics = set(topics)
    return {uri for uri in watched if changed_topics & _topics_of(uri)}


def list_changed(topics: Iterable[str]) -> bool:
    """Return whether the list of resources may have changed."""
    return feed.SURFACES in topics


def _topics_of(uri: str) -> set[str]:
    if uri == FLEET:
        return {feed.FLEET, feed.ASKS}
    topics = {uri.removeprefix(SCHEME)}
    return topics | {feed.ANY_SURFACE} if uri.startswith(SURFACE) else topics
