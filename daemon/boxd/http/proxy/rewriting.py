"""Protocol adapter only. Rewrites headers and queries of requests and responses for the proxy.

Pure functions on bytes: they never decode and re-encode, and keep the order and the spelling of
everything that they pass on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from boxd.http.proxy.cookies import COOKIE_NAME, without_crumb

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.http.requests.headers import HeaderLines

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
"""Hop-by-hop headers; those that begin with `proxy-` belong to them as well."""
CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
FORWARDED = b"x-forwarded-"
"""Prefix of the headers that only the proxy itself sets."""
ORIGIN_WIDE = frozenset({b"alt-svc", b"clear-site-data", b"strict-transport-security"})
"""Response headers that apply to a whole origin; in the path form the origin is the API's."""
REFERRER_POLICIES = frozenset({b"no-referrer", b"same-origin"})
"""Policies that keep a URL, which can contain a key, within its origin. With `no-referrer` browsers
send forms with `Origin: null`, which apps treat as a foreign site."""
_ABSOLUTE = re.compile(rb"(?:(?:[Hh][Tt][Tt][Pp][Ss]?):)?//([^/?#]*)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """A port of a box, as a request names it.

    `path`: the raw path for the app. `prefix`: the raw path before it; empty on a preview host.
    `host`: the preview host in lower case; None in the path form.
    """

    box: str
    port: int
    path: bytes
    prefix: bytes = b""
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """The client as the app sees it.

    `scheme`: http or https. `host`: the requested host, with its port.
    """

    address: str
    scheme: str
    host: bytes

    @property
    def origin(self) -> bytes:
        """The origin of the requested host, as a browser writes it."""
        return self.scheme.encode() + b"://" + self.host.lower()


def key_values(query: bytes) -> list[bytes]:
    """Return the values of all `key` parameters of a query, in any encoding, in order."""
    return [pair[1] for pair in map(_pair, query.split(b"&")) if pair[0] == b"key"]


def without_keys(query: bytes, is_key: Callable[[bytes], bool]) -> bytes:
    """Return the query without `key` parameters whose value `is_key`; the rest is unchanged."""
    if b"%" not in query and b"key" not in query:
        return query
    pairs = []
    for text in query.split(b"&"):
        name, value = _pair(text)
        if name != b"key" or not is_key(value):
            pairs.append(text)
    return b"&".join(pairs)


def request_lines(
    lines: HeaderLines, place: Place, client: Client, is_key: Callable[[bytes], bool]
) -> list[tuple[bytes, bytes]]:
    """Return the header lines for the app, without Content-Length and Transfer-Encoding."""
    dropped = _named_by_connection(lines) | CREDENTIALS | {b"content-length", b"forwarded"}
    result: list[tuple[bytes, bytes]] = []
    for name, value in lines:
        if name in dropped or _is_hop(name) or _is_forwarded(name):
            continue
        if name == b"cookie":
            rest = without_crumb(value)
            if rest is not None:
                result.append((name, rest))
        elif name == b"referer":
            result.append((name, _referer_without_keys(value, is_key)))
        else:
            result.append((name, value))
    if not any(name == b"host" for name, _ in result):
        # An HTTP/1.0 client may omit Host; the request to the app is HTTP/1.1, which requires it.
        result.insert(0, (b"host", client.host or b"localhost:%d" % place.port))
    result.append((b"x-forwarded-for", client.address.encode()))
    result.append((b"x-forwarded-proto", client.scheme.encode()))
    result.append((b"x-forwarded-host", client.host))
    if place.prefix:
        result.append((b"x-forwarded-prefix", place.prefix))
    return result


def response_lines(lines: HeaderLines, place: Place, client: Client) -> list[tuple[bytes, bytes]]:
    """Return the header lines of a response for the client, with Content-Length.

    Names are in lower case.
    """
    dropped = _named_by_connection(lines) | {b"service-worker-allowed"}
    if place.prefix:
        dropped |= ORIGIN_WIDE
    result: list[tuple[bytes, bytes]] = []
    policy = b"same-origin"
    for name, value in lines:
        if name in dropped or _is_hop(name):
            continue
        if name == b"location":
            result.append((name, location(value, place, client)))
        elif name == b"set-cookie":
            cookie = set_cookie(value, place)
            if cookie is not None:
                result.append((name, cookie))
        elif name == b"referrer-policy":
            policy = value.lower() if value.lower() in REFERRER_POLICIES else policy
        else:
            result.append((name, value))
    result.append((b"referrer-policy", policy))
    return result


def location(value: bytes, place: Place, client: Client) -> bytes:
    """Return a Location for the client. URLs of the app's own origin move below the prefix.

    A Location that points elsewhere is unchanged.
    """
    match = _ABSOLUTE.fullmatch(value)
    if match is None:
        return _behind(value, place.prefix) if value.startswith(b"/") else value
    authority, rest = match[1].lower(), match[2]
    if authority == client.host.lower():
        pass
    elif authority not in _own_authorities(place.port):
        return value
    return _behind(rest if rest.startswith(b"/") else b"/" + rest, place.prefix)


def set_cookie(value: bytes, place: Place) -> bytes | None:
    """Return an app's Set-Cookie, limited to its host, and in the path form to the prefix.

    Returns None for a cookie that would replace the service's own cookie.
    """
    pair, *attributes = value.split(b";")
    name, equals, content = pair.partition(b"=")
    if not equals:
        name, content = b"", name
    if name.strip() == COOKIE_NAME or (
        # Browsers send a cookie without a name as its value alone.
        not name.strip() and content.strip().startswith(COOKIE_NAME)
    ):
        return None
    parts = [pair]
    for attribute in attributes:
        word, _, path = attribute.partition(b"=")
        word = word.strip().lower()
        if word == b"domain":
            continue
        if word == b"path" and place.prefix:
            if path.strip().startswith(b"/"):
                parts.append(b" Path=" + _behind(path.strip(), place.prefix))
            continue
        parts.append(attribute)
    return b";".join(parts)


def _behind(path: bytes, prefix: bytes) -> bytes:
    """Return an absolute path below the prefix.

    An app that knows its prefix adds it by itself; then the path is unchanged.
    """
    if path == prefix or path.startswith((prefix + b"/", prefix + b"?", prefix + b"#")):
        return path
    return prefix + path


def _own_authorities(port: int) -> set[bytes]:
    names = (b"localhost", b"127.0.0.1")
    return {b"%s:%d" % (name, port) for name in names} | (set(names) if port == 80 else set())


def _named_by_connection(lines: HeaderLines) -> set[bytes]:
    return {
        token.strip().lower()
        for name, value in lines
        if name == b"connection"
        for token in value.split(b",")
    } - {b"host"}


def _is_hop(name: bytes) -> bool:
    return name in HOP_BY_HOP or name.startswith(b"proxy-")


def _is_forwarded(name: bytes) -> bool:
    # Apps that read headers from environment variables (CGI, WSGI) treat `_` and `-` alike.
    return name.replace(b"_", b"-").startswith(FORWARDED)


def _pair(text: bytes) -> tuple[bytes, bytes]:
    name, _, value = text.partition(b"=")
    return unquote_to_bytes(name), unquote_to_bytes(value)


def referer_query(value: bytes) -> bytes:
    """Return the query of a Referer. It can contain the key that the page was opened with."""
    return value.partition(b"?")[2].partition(b"#")[0]


def _referer_without_keys(value: bytes, is_key: Callable[[bytes], bool]) -> bytes:
    before, mark, query = value.partition(b"?")
    rest = without_keys(query, is_key)
    return before + (mark if rest or not query else b"") + rest
