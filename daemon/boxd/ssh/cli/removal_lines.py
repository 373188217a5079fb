"""Lines for owners about unused boxes that the service is going to remove. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.table import format_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd.boxes.presence.removal_notices import UnusedBox
    from boxd.ssh.cli.command import Endpoint

_LINES = 3
"""Boxes with a line of their own at a login."""


def login_lines(endpoint: Endpoint, boxes: Sequence[UnusedBox]) -> list[str]:
    """Return the lines for a login: a few boxes, the number of the others, and how to keep them."""
    listed, rest = boxes[:_LINES], len(boxes) - _LINES
    lines = [f"box {box.ref} is unused: it will be removed in {_span(box)}" for box in listed]
    if rest > 0:
        more = "1 more unused box" if rest == 1 else f"{rest} more unused boxes"
        lines.append(f"{more} will be removed; see: {endpoint.ssh_command('cli', 'ls')}")
    if listed:
        what = "it" if len(listed) == 1 else "them"
        command = endpoint.ssh_command("cli", "keep", *(box.ref for box in listed))
        lines.append(f"to keep {what}: {command}")
    return lines


def _span(box: UnusedBox) -> str:
    return format_span(box.remaining.total_seconds())


def list_note(endpoint: Endpoint, boxes: Sequence[UnusedBox]) -> str:
    """Return the note below a list that contains unused boxes."""
    unused = "1 unused box" if len(boxes) == 1 else f"{len(boxes)} unused boxes"
    name = boxes[0].ref if len(boxes) == 1 else "NAME"
    command = endpoint.ssh_command("cli", "keep", name)
    return f"{unused} will be removed (column REMOVAL); to keep a box: {command}"
