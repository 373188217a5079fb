"""Parsing of header lines, query strings and paths. Pure functions on bytes.

This module percent-decodes paths and query strings exactly once. `+` always means a plus.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from boxd.errors import BadName, BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    HeaderLines = Sequence[tuple[bytes, bytes]]

ENCODED_SLASH = "\udc2f"
"""Stands for `%2F` in a decoded path. No UTF-8 text decodes to it, so segments stay separate."""
MAX_HEADER_LINES = 100
MAX_HEADER_BYTES = 65_536
"""Maximum size of request target and headers, in bytes; h11 itself limits only incomplete heads."""
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def header(lines: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the value of the first line named `name` (lower case), or None."""
    return next((value for key, value in lines if key == name), None)


def joined(lines: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return all lines named `name` as one comma-separated value; None if there is none."""
    values = [value for key, value in lines if key == name]
    return b", ".join(values) if values else None


def framing_problem(
    http_version: str, raw_path: bytes, query: bytes, lines: HeaderLines
) -> str | None:
    """Return why the framing of a request must be refused, or None if it is valid."""
    if not raw_path.startswith(b"/"):
        return "the request target must start with '/'"
    if any(byte <= 0x20 or byte == 0x7F for byte in raw_path + query):
        return "the request target contains a control character"
    if http_version not in ("1.0", "1.1"):
        return f"HTTP/{http_version} is not supported; use HTTP/1.1"
    size = len(raw_path) + len(query) + sum(len(name) + len(value) for name, value in lines)
    if size > MAX_HEADER_BYTES:
        return f"{size} bytes of headers; at most {MAX_HEADER_BYTES} are allowed"
    if len(lines) > MAX_HEADER_LINES:
        return f"the request has {len(lines)} header lines; at most {MAX_HEADER_LINES} are allowed"
    if _CONTROL.search(b"".join(value for _, value in lines)):
        return "a header value contains a control character"
    lengths = sum(1 for name, _ in lines if name == b"content-length")
    encodings = sum(1 for name, _ in lines if name == b"transfer-encoding")
    if lengths and encodings:
        return "Content-Length and Transfer-Encoding cannot be combined"
    if lengths > 1 or encodings > 1:
        return "the request has Content-Length or Transfer-Encoding twice"
    for credential in (b"authorization", b"x-api-key"):
        if sum(1 for name, _ in lines if name == credential) > 1:
            return f"the request has the header {credential.decode()} twice; send it once"
    if encodings and http_version == "1.0":
        return "HTTP/1.0 has no Transfer-Encoding"
    return None


def has_body(lines: HeaderLines) -> bool:
    """Return whether the headers announce a body of at least one byte."""
    if header(lines, b"transfer-encoding") is not None:
        return True
    return (header(lines, b"content-length") or b"0").strip(b"0") != b""


def decode_path(raw_path: bytes) -> str:
    """Return the path as text for route matching; bytes that are not UTF-8 as surrogate escapes."""
    if b"%" not in raw_path:
        return raw_path.decode("ascii")
    return "/".join(
        unquote_to_bytes(segment).decode("utf-8", "surrogateescape").replace("/", ENCODED_SLASH)
        for segment in raw_path.split(b"/")
    )


def path_text(decoded: str) -> str:
    """Return a parameter of a decoded path, with its slashes.

    Raises BadRequest if it is not UTF-8.
    """
    text = decoded.replace(ENCODED_SLASH, "/")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest("the path is not UTF-8") from None
    return text


def query_values(query: bytes, name: bytes) -> list[bytes]:
    """Return all values of a query parameter, in order; one without `=` has the value b""."""
    values = []
    for pair in query.split(b"&"):
        key, _, value = pair.partition(b"=")
        if pair and unquote_to_bytes(key) == name:
            values.append(unquote_to_bytes(value))
    return values


def query_workspace(query: bytes) -> str | None:
    """Return the workspace of `?ws=`, unchecked, or None.

    Raises BadName for two different values.
    """
    values = set(query_values(query, b"ws"))
    if not values:
        return None
    if len(values) > 1:
        raise BadName("the request has more than one ?ws=; give one workspace")
    try:
        return values.pop().decode("utf-8")
    except UnicodeDecodeError:
        raise BadName("?ws= is not UTF-8; a workspace name is a-z, 0-9 and '-'") from None


def query_flag(query: bytes, name: str, *, default: bool) -> bool:
    """Return the value of `?name=true` or `?name=false`; `default` if absent. Raises BadRequest."""
    values = set(query_values(query, name.encode()))
    if len(values) <= 1 and values <= {b"true", b"false"}:
        return b"true" in values if values else default
    raise BadRequest(f"?{name}= must be true or false")


def media_type(value: bytes | None) -> str:
    """Return the type of a Content-Type value in lower case, without parameters; "" for None."""
    return (value or b"").split(b";")[0].strip().decode("latin-1").lower()


def accepts_text(lines: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether `Accept` names `text/plain`, and neither events nor JSON."""
    names = {media_type(part) for part in (header(lines, b"accept") or b"").split(b",")}
    return "text/plain" in names and not names & {"text/event-stream", "application/json"}
