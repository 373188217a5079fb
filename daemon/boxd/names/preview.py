"""Labels of preview hosts: `<box>-<port>`, the box being all before the last hyphen."""

from __future__ import annotations

import re
from dataclasses import dataclass

from boxd.errors import BadName
from boxd.names.reference import Reference, parse_reference
from boxd.names.words import shown

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


def format_preview_label(preview: PreviewLabel) -> str:
    """The text that `parse_preview_label` reads back."""
    return f"{preview.reference}-{preview.port}"
