"""Protocol adapter only. Authentication for ports of boxes: by an API key or by a cookie.

The first visit with a key sets the cookie.

The first valid credential decides, because the others may belong to the app. The order is
`Authorization`, `X-Api-Key`, the `key` parameters of the query, the cookies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from boxd.errors import BadRequest, Forbidden, InvalidKey
from boxd.http.proxy.cookies import crumbs
from boxd.http.proxy.rewriting import key_values, referer_query
from boxd.http.requests.auth import enter, presented_key
from boxd.http.requests.headers import header

if TYPE_CHECKING:
    from starlette.types import Scope

    from boxd.http.proxy.rewriting import Client, Place
    from boxd.http.requests.headers import HeaderLines
    from boxd.model.box import Box
    from boxd.operations import Operations
    from boxd.principal import Principal

MAX_SHOWN = 8
"""Maximum number of keys, and of cookies, that the service looks up for one request."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_KEY = re.compile(rb"svc_[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request to a port. `by`: the kind of its credential.

    `keys`: all API keys in the request, of any owner. `box`: the box that a cookie gives access to.
    """

    principal: Principal
    by: Literal["header", "query", "cookie"]
    keys: frozenset[bytes]
    box: Box | None = None

    def is_key(self, value: bytes) -> bool:
        """Return whether the value of a `key` parameter is an API key.

        An API key must not reach the app.
        """
        return value in self.keys


async def admit(scope: Scope, operations: Operations, place: Place) -> Visitor:
    """Authenticate a request to a port of a box.

    Raises InvalidKey without a valid credential, Forbidden for a blocked owner, BadRequest for too
    many keys.
    """
    lines: HeaderLines = scope["headers"]
    header_keys = [key for key in map(presented_key, _apart(lines)) if key is not None]
    query_keys = key_values(scope["query_string"])
    principals: dict[bytes, Principal] = {}
    candidates = [key.encode("latin-1", "replace") for key in header_keys]
    candidates += query_keys
    for name, value in lines:
        if name == b"referer":
            candidates += key_values(referer_query(value))
    key_texts = {value for value in candidates if _KEY.fullmatch(value)}
    if len(key_texts) > MAX_SHOWN:
        raise BadRequest(
            f"{len(key_texts)} API keys in one request; at most {MAX_SHOWN} are allowed"
        )
    for value in key_texts:
        try:
            principals[value] = await operations.keys.principal_of_key(value.decode())
        except InvalidKey:
            continue
    visitor = _by_key(principals, candidates[: len(header_keys)], query_keys)
    if visitor is None:
        if not key_texts and not crumbs(lines):
            # A request without a credential is refused after the same work as one with a wrong
            # credential.
            await operations.keys.principal_of_key(None)
        principal, box = await _by_cookie(lines, operations, place)
        visitor = Visitor(principal, "cookie", frozenset(principals), box)
    enter(scope, operations, visitor.principal)
    return visitor


def check_origin(visitor: Visitor, scope: Scope, client: Client) -> None:
    """Raise Forbidden for a request that another site made a browser send with the cookie.

    A page that hides its origin sends `Origin: null`; then `Sec-Fetch-Site`, which the browser
    sets, decides.
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
                "this request comes from another site than the app; open the app itself"
            )


def _apart(lines: HeaderLines) -> list[list[tuple[bytes, bytes]]]:
    """Return each header line that can contain a key, as a list of its own, in order."""
    return [
        [line] for name in (b"authorization", b"x-api-key") for line in lines if line[0] == name
    ]


def _by_key(
    principals: dict[bytes, Principal], header_keys: list[bytes], query_keys: list[bytes]
) -> Visitor | None:
    for value in header_keys:
        if value in principals:
            return Visitor(principals[value], "header", frozenset(principals))
    for value in query_keys:
        if value in principals:
            return Visitor(principals[value], "query", frozenset(principals))
    return None


async def _by_cookie(
    lines: HeaderLines, operations: Operations, place: Place
) -> tuple[Principal, Box]:
    for value in crumbs(lines)[:MAX_SHOWN]:
        try:
            return await operations.preview_sessions.opened_by_cookie(
                value, place.box, place.port, place.host
            )
        except InvalidKey:
            continue
    raise InvalidKey
