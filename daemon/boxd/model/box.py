"""Boxes: states, the transition table of spec 3 as data, and the record that is stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypedDict

from boxd.names.jump import UNNAMED

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


PIDS = 512
"""Processes and threads of a box whose flavor does not say."""


class BoxChanges(TypedDict, total=False):
    """What may change in a stored box beside its state; see `Box` for the fields."""

    grace: timedelta | None
    drive: bool
    step: int
    since: datetime
    idle_since: datetime | None
    memory: bool
    durable: bool
    auto_suspend: bool
    pinned_until: datetime | None
    pin_why: str
    confidential: bool
    host_key: str
    image: str


class BoxNotes(BoxChanges, total=False):
    """What may change while a box stays in its state: a change of state tells its own `detail`."""

    detail: str


@dataclass(frozen=True, slots=True)
class Box:
    """One box as stored. `workspace` is None in the owner's default workspace.

    `id` is 32 hex digits. `detail` is one line for people about how it came into its state (for
    example why a resume is a restart from disk), or what happened to it since. `host_key` is the
    public key that the box's agent must show in the tunnel. `grace` and `deadline` are kept as the
    spec gave them.
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
    drive: bool
    """Whether /wrk belongs in it: it is attached at each start and after a crash of the mount."""
    since: datetime
    """When it came into its state: like `idle_since` and `pinned_until` a mark of `boxes.marks`,
    which counts elapsed time and is no wall time."""
    step: int = 0
    """Step of its present change, written before the step is done (`boxes.suspend`); 0: none."""
    idle_since: datetime | None = None
    """Its last detach, or the end of its last detached shell; None: none yet."""
    memory: bool = False
    """It sleeps with its memory on the host's disk, so that its processes will go on."""
    durable: bool = False
    """Only its deadline removes it by itself."""
    auto_suspend: bool = True
    """False: nothing is due for it by elapsed time."""
    pinned_until: datetime | None = None
    """Held awake until then; None: no pin."""
    pin_why: str = ""
    """What the pin is for, as its maker wrote it."""
    confidential: bool = False
    """First reached through the relay: its memory never goes to the host's disk."""
    egress: str = "all"
    """`all`, `none`, or a list of names and networks."""
    disk_mb: int = 0
    """Cap of its writable layer in MiB; 0: none."""
    pids: int = PIDS
    """Cap of its processes and threads."""
    clamped: bool = False
    """Its deadline is shorter than was asked for."""
    relay_key: str = ""
    """The public key, one OpenSSH line, that the SSH server inside a confidential box takes."""

    @property
    def ref(self) -> str:
        """The reference under which the owner addresses it: `name` or `workspace/name`."""
        return self.name if self.workspace is None else f"{self.workspace}/{self.name}"

    @property
    def relayed(self) -> str:
        """How its owner reaches it when it is confidential. `HOST` is the front door's: who knows
        its name puts it there (`names.jump`)."""
        return f"ssh -J {UNNAMED} root@{self.ref}"
