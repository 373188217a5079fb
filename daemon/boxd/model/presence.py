"""What keeps a box awake although no client is attached to it."""

from __future__ import annotations

from typing import NamedTuple


class Presence(NamedTuple):
    """The numbers of detached shells and of background commands, as the agent reports them."""

    shells: int = 0
    commands: int = 0
