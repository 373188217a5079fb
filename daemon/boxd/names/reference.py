"""Box references: text that only addresses a box and never creates one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from boxd.errors import BadName
from boxd.names.words import fold, is_name, parse_workspace, shown

ID_DIGITS = 32
"""Hex digits of a full box id."""
EXAMPLE = "give a box name, 'workspace/name', or a box id or its beginning"

_HEX = re.compile(r"[0-9a-f]{1,32}")


@dataclass(frozen=True, slots=True)
class Reference:
    """What a reference may mean: a name and, when it is hex without a workspace, also an id.

    `name` is searched in `workspace` (None: the caller's default one); `id_prefix`, an id or the
    beginning of one, in all boxes of the caller.
    """

    workspace: str | None
    name: str
    id_prefix: str | None

    @property
    def full_id(self) -> str | None:
        """The id when all its digits are given."""
        whole = self.id_prefix is not None and len(self.id_prefix) == ID_DIGITS
        return self.id_prefix if whole else None

    def __str__(self) -> str:
        return self.name if self.workspace is None else f"{self.workspace}/{self.name}"


def parse_reference(text: str) -> Reference:
    """Reads a reference, folding case. Raises BadName, which says what a reference looks like."""
    head, slash, tail = text.partition("/")
    workspace = parse_workspace(head) if slash else None
    name = fold(tail if slash else head)
    if not is_name(name):
        raise BadName(f"{shown(text)} is not a box reference: {EXAMPLE}")
    return Reference(workspace, name, None if slash or not _HEX.fullmatch(name) else name)
