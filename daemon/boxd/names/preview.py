"""Preview hosts: `<box>-<port>.<preview domain>`. The last hyphen separates box and port."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import BadName
from boxd.names.reference import Reference, parse_reference
from boxd.names.words import fold, shown

if TYPE_CHECKING:
    from boxd.names.address import Address

MAX_LABEL = 63
"""Maximum length of one DNS label, in characters."""
MAX_PORT = 65_535
ID_DIGITS = 12
"""Digits of the id in the URL of a preview. An id means the same box to all users."""

_PORT = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class PreviewLabel:
    """A box reference without a workspace, and a TCP port in that box."""

    reference: Reference
    port: int


def parse_port(text: str) -> int:
    """Return a TCP port, 1 to 65535, from a text without sign or leading zero. Raises BadName."""
    if _PORT.fullmatch(text) is None or int(text) > MAX_PORT:
        raise BadName(f"{shown(text)} is not a port: 1 to {MAX_PORT}, for example 3000")
    return int(text)


def parse_preview_label(label: str) -> PreviewLabel:
    """Return the box and port in the first label of a preview host; ignore case. Raises BadName."""
    box, hyphen, port = label.rpartition("-")
    if not hyphen or "/" in box or len(label) > MAX_LABEL:
        raise BadName(f"{shown(label)} is not a preview label; for example 'my-app-3000'")
    return PreviewLabel(parse_reference(box), parse_port(port))


def label_below(host: str, domain: str) -> str | None:
    """Return the part of a host before `.domain` in lower case, or None if there is none.

    `host` may have a port and a trailing dot. The result can have several labels with dots between
    them, which `parse_preview_label` rejects.
    """
    name, colon, port = fold(host).rpartition(":")
    if not colon or not port.isdigit():
        name = fold(host)
    label, dot, rest = name.removesuffix(".").rpartition(f".{domain}")
    return label if dot and not rest and label else None


def also_reads_as(name: str) -> PreviewLabel | None:
    """Return the other box and port that a box name also means as a preview label, or None."""
    try:
        return parse_preview_label(name)
    except BadName:
        return None


def example_url(domain: str, port: int) -> str:
    """Return an example of a preview URL; `port` is the port of the API."""
    if _is_local(domain):
        return f"http://BOX-PORT.{domain}:{port}"
    return f"https://BOX-PORT.{domain}"


def preview_authority(domain: str | None, address: Address | None) -> str | None:
    """Return the part of preview URLs after `BOX-PORT.`; None: there are no previews.

    `address` is that of the API.

    Browsers resolve names below `localhost` to the local machine, so such previews have no TLS
    proxy, and the port of the API.
    """
    if domain is None or address is None:
        return None
    return f"{domain}:{address.port}" if _is_local(domain) else domain


def preview_url(box_id: str, port: int, authority: str | None) -> str | None:
    """Return the URL of a port of a box; `authority` None: there are no preview hosts."""
    if authority is None:
        return None
    scheme = "http" if _is_local(authority.partition(":")[0]) else "https"
    return f"{scheme}://{box_id[:ID_DIGITS]}-{port}.{authority}/"


def _is_local(domain: str) -> bool:
    return f".{domain}".endswith(".localhost")
