"""Boxes: states, the transition table of spec 3 as data, and the record that is stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime, timedelta


class BoxState(StrEnum):
    """The words that `ls` and the API show. `running` and `suspended` are the steady ones."""

    CREATING = "creating"
    RUNNING = "running"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    FAILED = "failed"


TRANSITIONS: frozenset[tuple[BoxState, BoxState]] = frozenset(
    {
        (BoxState.CREATING, BoxState.RUNNING),
        (BoxState.CREATING, BoxState.FAILED),
        (BoxState.RUNNING, BoxState.SUSPENDING),
        (BoxState.SUSPENDING, BoxState.SUSPENDED),
        (BoxState.SUSPENDING, BoxState.RUNNING),
        (BoxState.SUSPENDED, BoxState.RESUMING),
        (BoxState.RESUMING, BoxState.RUNNING),
        (BoxState.RESUMING, BoxState.SUSPENDED),
        (BoxState.RUNNING, BoxState.FAILED),
        (BoxState.FAILED, BoxState.RESUMING),
    }
)
"""Allowed changes. Removal is allowed from every state and is the deletion of the row."""


@dataclass(frozen=True, slots=True)
class Box:
    """One box as stored. `workspace` is None in the owner's default workspace.

    `id` is 32 hex digits. `detail` is one line for people about how it came into its state (for
    example why a resume is a restart from disk). `host_key` is the public key that the box's agent
    must show in the tunnel. `grace` and `deadline` are kept as the spec gave them.
    """

    id: str
    owner: str
    workspace: str | None
    name: str
    image: str
    flavor: str
    cpus: float
    mem_mb: int
    state: BoxState
    detail: str
    backend: str
    host_key: str
    created: datetime
    deadline: datetime | None
    grace: timedelta | None
    ephemeral: bool
    """True for `_` boxes: removed when their last channel closes."""
    drive: bool = False
    """Whether /wrk belongs in it: it is attached at each start and after a crash of the mount."""

    @property
    def ref(self) -> str:
        """The reference under which the owner addresses it: `name` or `workspace/name`."""
        return self.name if self.workspace is None else f"{self.workspace}/{self.name}"
