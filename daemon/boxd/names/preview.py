"""Preview hosts: `<box>-<port>.<preview domain>`, the box being all before the last hyphen."""

from __future__ import annotations

import re
from dataclasses import dataclass

from boxd.errors import BadName
from boxd.names.reference import Reference, parse_reference
from boxd.names.words import fold, shown

MAX_LABEL = 63
"""Characters of one DNS label."""
MAX_PORT = 65_535

_PORT = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class PreviewLabel:
    """A box reference (never with a workspace) and a TCP port in that box."""

    reference: Reference
    port: int


def parse_port(text: str) -> int:
    """A TCP port, 1 to 65535, without sign or leading zero. Raises BadName."""
    if _PORT.fullmatch(text) is None or int(text) > MAX_PORT:
        raise BadName(f"{shown(text)} is not a port: 1 to {MAX_PORT}, for example 3000")
    return int(text)


def parse_preview_label(label: str) -> PreviewLabel:
    """Reads the first label of a preview host, folding case. Raises BadName."""
    box, hyphen, port = label.rpartition("-")
    if not hyphen or "/" in box or len(label) > MAX_LABEL:
        raise BadName(f"{shown(label)} is not a preview label; for example 'my-app-3000'")
    return PreviewLabel(parse_reference(box), parse_port(port))


def label_below(host: str, domain: str) -> str | None:
    """What stands before `.domain` in a host, folded to lower case; None when nothing does.

    `host` may have a port and the dot of a complete name. More than one label comes back with its
    dots, which `parse_preview_label` refuses.
    """
    name, colon, port = fold(host).rpartition(":")
    if not colon or not port.isdigit():
        name = fold(host)
    label, dot, rest = name.removesuffix(".").rpartition(f".{domain}")
    return label if dot and not rest and label else None


def also_reads_as(name: str) -> PreviewLabel | None:
    """What a box name alone means before the preview domain: a port of another box, or nothing."""
    try:
        return parse_preview_label(name)
    except BadName:
        return None


def format_preview_label(preview: PreviewLabel) -> str:
    """The text that `parse_preview_label` reads back."""
    return f"{preview.reference}-{preview.port}"


def example_url(domain: str, port: int) -> str:
    """How the address of a port begins that is to be typed; `port` is that of the API.

    Browsers take names below `localhost` for this very machine, without DNS; before other domains
    stands a TLS proxy.
    """
    if f".{domain}".endswith(".localhost"):
        return f"http://BOX-PORT.{domain}:{port}"
    return f"https://BOX-PORT.{domain}"
