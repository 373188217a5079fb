"""Protocol adapter only. Who comes to a port of a box: by an API key, or by the cookie that the
first visit with one has set.

The first credential that is good decides, as others may be the app's: `Authorization`, then
`X-Api-Key`, the query's `key` pairs, the cookies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from boxd.api.auth import enter, presented_key
from boxd.api.cookies import crumbs
from boxd.api.headers import header
from boxd.api.rewriting import key_values, referer_query
from boxd.errors import BadRequest, Forbidden, InvalidKey

if TYPE_CHECKING:
    from starlette.types import Scope

    from boxd.api.headers import HeaderLines
    from boxd.api.rewriting import Client, Place
    from boxd.model.box import Box
    from boxd.operations import Operations
    from boxd.principal import Principal

MAX_SHOWN = 8
"""Keys, and cookies, that are looked up for one request."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_KEY = re.compile(rb"svc_[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who comes, and by what. `keys`: all values of `key` pairs that are API keys, whosoever.

    `box`: the one that a cookie opens."""

    principal: Principal
    by: Literal["header", "query", "cookie"]
    keys: frozenset[bytes]
    box: Box | None = None

    def is_key(self, value: bytes) -> bool:
        """Whether a value of a `key` pair must not reach the app."""
        return value in self.keys


async def admit(scope: Scope, operations: Operations, place: Place) -> Visitor:
    """Who asks for a port of a box. InvalidKey for nobody; Forbidden for a blocked owner."""
    lines: HeaderLines = scope["headers"]
    shown = [key for key in map(presented_key, _apart(lines)) if key is not None]
    asked = key_values(scope["query_string"])
    known: dict[bytes, Principal] = {}
    candidates = [key.encode("latin-1", "replace") for key in shown]
    candidates += asked
    for name, value in lines:
        if name == b"referer":
            candidates += key_values(referer_query(value))
    wanted = {value for value in candidates if _KEY.fullmatch(value)}
    if len(wanted) > MAX_SHOWN:
        raise BadRequest(f"{len(wanted)} API keys in one request; at most {MAX_SHOWN} are read")
    for value in wanted:
        try:
            known[value] = await operations.principal_of_key(value.decode())
        except InvalidKey:
            continue
    visitor = _by_key(known, candidates[: len(shown)], asked)
    if visitor is None:
        if not wanted and not crumbs(lines):
            # Who shows nothing is refused as late as who shows something.
            await operations.principal_of_key(None)
        principal, box = await _by_cookie(lines, operations, place)
        visitor = Visitor(principal, "cookie", frozenset(known), box)
    enter(scope, operations, visitor.principal)
    return visitor


def check_origin(visitor: Visitor, scope: Scope, client: Client) -> None:
    """Forbidden for what another site had a browser send, which adds the cookie unasked.

    Origin is `null` for a page that tells nothing of itself; then the browser's own word counts.
    """
    if visitor.by != "cookie":
        return
    if scope["type"] == "http" and scope["method"] in SAFE_METHODS:
        return
    for name, value in scope["headers"]:
        if name != b"origin" or value.lower() == client.origin:
            continue
        same_site = header(scope["headers"], b"sec-fetch-site") == b"same-origin"
        if value != b"null" or not same_site:
            raise Forbidden(
                "this request comes from another site than the app's own; open the app itself"
            )


def _apart(lines: HeaderLines) -> list[list[tuple[bytes, bytes]]]:
    """The header lines that may hold a key, each alone, in the order in which they count."""
    return [
        [line] for name in (b"authorization", b"x-api-key") for line in lines if line[0] == name
    ]


def _by_key(
    known: dict[bytes, Principal], shown: list[bytes], asked: list[bytes]
) -> Visitor | None:
    for value in shown:
        if value in known:
            return Visitor(known[value], "header", frozenset(known))
    for value in asked:
        if value in known:
            return Visitor(known[value], "query", frozenset(known))
    return None


async def _by_cookie(
    lines: HeaderLines, operations: Operations, place: Place
) -> tuple[Principal, Box]:
    for value in crumbs(lines)[:MAX_SHOWN]:
        try:
            return await operations.opened_by_cookie(value, place.box, place.port, place.host)
        except InvalidKey:
            continue
    raise InvalidKey
