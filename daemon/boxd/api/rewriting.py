"""Protocol adapter only. What a request and its answer look like on the other side of the proxy.

Pure functions on bytes: nothing is decoded and encoded again, what stays keeps order and spelling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from boxd.api.cookies import COOKIE_NAME, without_crumb

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.api.headers import HeaderLines

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
"""And all that begin with `proxy-`."""
CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
SAID_BY_US = b"x-forwarded-"
ORIGIN_WIDE = frozenset({b"alt-svc", b"clear-site-data", b"strict-transport-security"})
"""What an app says with these holds for its whole origin, which in the path form is the API's."""
REFERRER_POLICIES = frozenset({b"no-referrer", b"same-origin"})
"""Policies under which a URL, which may hold a key, stays within its origin. Under the first one
browsers send forms with `Origin: null`, which apps take for a foreign site."""
_ABSOLUTE = re.compile(rb"(?:(?:[Hh][Tt][Tt][Pp][Ss]?):)?//([^/?#]*)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """A port of a box as a request names it.

    `path` is what the app sees, raw. `prefix` is what stood before it, raw; empty on a preview
    host, where `host` is that host in lower case.
    """

    box: str
    port: int
    path: bytes
    prefix: bytes = b""
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """What an app is told of who asks: `scheme` is http or https, `host` the one that it asked
    for, with its port."""

    address: str
    scheme: str
    host: bytes

    @property
    def origin(self) -> bytes:
        """As a browser writes it."""
        return self.scheme.encode() + b"://" + self.host.lower()


def key_values(query: bytes) -> list[bytes]:
    """Values of the `key` pairs of a query, however they are spelled, in order."""
    return [pair[1] for pair in map(_pair, query.split(b"&")) if pair[0] == b"key"]


def without_keys(query: bytes, is_key: Callable[[bytes], bool]) -> bytes:
    """The query without its `key` pairs whose value `is_key`; the rest stands as it stood."""
    if b"%" not in query and b"key" not in query:
        return query
    kept = []
    for text in query.split(b"&"):
        name, value = _pair(text)
        if name != b"key" or not is_key(value):
            kept.append(text)
    return b"&".join(kept)


def request_lines(
    lines: HeaderLines, place: Place, client: Client, is_key: Callable[[bytes], bool]
) -> list[tuple[bytes, bytes]]:
    """Header lines for the app, without framing: no Content-Length, no Transfer-Encoding."""
    dropped = _named_by_connection(lines) | CREDENTIALS | {b"content-length", b"forwarded"}
    kept: list[tuple[bytes, bytes]] = []
    for name, value in lines:
        if name in dropped or _is_hop(name) or _is_said_by_us(name):
            continue
        if name == b"cookie":
            rest = without_crumb(value)
            if rest is not None:
                kept.append((name, rest))
        elif name == b"referer":
            kept.append((name, _referer_without_keys(value, is_key)))
        else:
            kept.append((name, value))
    if not any(name == b"host" for name, _ in kept):
        # An HTTP/1.0 client may send none; the app is asked by HTTP/1.1, which needs one.
        kept.insert(0, (b"host", client.host or b"localhost:%d" % place.port))
    kept.append((b"x-forwarded-for", client.address.encode()))
    kept.append((b"x-forwarded-proto", client.scheme.encode()))
    kept.append((b"x-forwarded-host", client.host))
    if place.prefix:
        kept.append((b"x-forwarded-prefix", place.prefix))
    return kept


def response_lines(lines: HeaderLines, place: Place, client: Client) -> list[tuple[bytes, bytes]]:
    """Header lines of an answer for the client; names in lower case, Content-Length kept."""
    dropped = _named_by_connection(lines) | {b"service-worker-allowed"}
    if place.prefix:
        dropped |= ORIGIN_WIDE
    kept: list[tuple[bytes, bytes]] = []
    policy = b"same-origin"
    for name, value in lines:
        if name in dropped or _is_hop(name):
            continue
        if name == b"location":
            kept.append((name, location(value, place, client)))
        elif name == b"set-cookie":
            cookie = set_cookie(value, place)
            if cookie is not None:
                kept.append((name, cookie))
        elif name == b"referrer-policy":
            policy = value.lower() if value.lower() in REFERRER_POLICIES else policy
        else:
            kept.append((name, value))
    kept.append((b"referrer-policy", policy))
    return kept


def location(value: bytes, place: Place, client: Client) -> bytes:
    """A Location that points at the app's own origin stays behind the prefix; others stay."""
    found = _ABSOLUTE.fullmatch(value)
    if found is None:
        return _behind(value, place.prefix) if value.startswith(b"/") else value
    authority, rest = found[1].lower(), found[2]
    if authority == client.host.lower():
        pass
    elif authority not in _own_authorities(place.port):
        return value
    return _behind(rest if rest.startswith(b"/") else b"/" + rest, place.prefix)


def set_cookie(value: bytes, place: Place) -> bytes | None:
    """A Set-Cookie of an app: for its host alone, in the path form below the prefix alone. None
    for one that would stand for our own."""
    pair, *attributes = value.split(b";")
    name, equals, content = pair.partition(b"=")
    if not equals:
        name, content = b"", name
    if name.strip() == COOKIE_NAME or (
        # Browsers send a cookie without a name as its value alone.
        not name.strip() and content.strip().startswith(COOKIE_NAME)
    ):
        return None
    kept = [pair]
    for attribute in attributes:
        word, _, path = attribute.partition(b"=")
        word = word.strip().lower()
        if word == b"domain":
            continue
        if word == b"path" and place.prefix:
            if path.strip().startswith(b"/"):
                kept.append(b" Path=" + _behind(path.strip(), place.prefix))
            continue
        kept.append(attribute)
    return b";".join(kept)


def _behind(path: bytes, prefix: bytes) -> bytes:
    """An absolute path below the prefix; an app that knows its prefix has put it there itself."""
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


def _is_said_by_us(name: bytes) -> bool:
    # Apps that take names from environment variables (CGI, WSGI) read `_` and `-` as the same.
    return name.replace(b"_", b"-").startswith(SAID_BY_US)


def _pair(text: bytes) -> tuple[bytes, bytes]:
    name, _, value = text.partition(b"=")
    return unquote_to_bytes(name), unquote_to_bytes(value)


def referer_query(value: bytes) -> bytes:
    """The query of a Referer, which may hold the key that its page was opened with."""
    return value.partition(b"?")[2].partition(b"#")[0]


def _referer_without_keys(value: bytes, is_key: Callable[[bytes], bool]) -> bytes:
    before, mark, query = value.partition(b"?")
    rest = without_keys(query, is_key)
    return before + (mark if rest or not query else b"") + rest
