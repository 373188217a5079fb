"""Box references: texts that refer to an existing box and never create one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from boxd.errors import BadName
from boxd.names.words import fold, is_name, parse_workspace, shown

ID_DIGITS = 32
"""Hex digits of a full box id."""
EXAMPLE = "give a box name, 'workspace/name', or a box id or its beginning"

_HEX = re.compile(rf"[0-9a-f]{{1,{ID_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference: a name, and an id if the text is hexadecimal without a workspace.

    `name` is a name in `workspace` (None: the caller's default workspace). `id_prefix` is an id, or
    the beginning of an id, of any box of the caller.
    """

    workspace: str | None
    name: str
    id_prefix: str | None

    def __str__(self) -> str:
        return self.name if self.workspace is None else f"{self.workspace}/{self.name}"


def parse_reference(text: str) -> Reference:
    """Parse a reference and fold it to lower case. Raises BadName with the valid forms."""
    head, slash, tail = text.partition("/")
    workspace = parse_workspace(head) if slash else None
    name = fold(tail if slash else head)
    if not is_name(name):
        raise BadName(f"{shown(text)} is not a box reference: {EXAMPLE}")
    return Reference(workspace, name, None if slash or not _HEX.fullmatch(name) else name)
