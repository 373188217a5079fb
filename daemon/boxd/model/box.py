"""Boxes: their states, the allowed transitions between states, and the stored record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypedDict

from boxd.names.jump import UNNAMED

if TYPE_CHECKING:
    from datetime import datetime, timedelta


class BoxState(StrEnum):
    """States as `ls` and the API show them. Only `running` and `suspended` are stable."""

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
"""Allowed changes of state. Every state allows removal, which deletes the row."""


PIDS = 512
"""Default limit of processes and threads for flavors without one."""


class BoxChanges(TypedDict, total=False):
    """Fields of a stored box that a change of state may change too. `Box` explains the fields."""

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
    """Fields that may change without a change of state.

    A change of state sets its own `detail`.
    """

    detail: str


@dataclass(frozen=True, slots=True)
class Box:
    """One box as stored. `workspace` is None in the owner's default workspace.

    `id` is 32 hex digits. `detail` is one line for users: the reason for the state, or a later
    event. For example, it says why a resume is a restart from disk. `host_key` is the public key
    that the box's agent must present in the tunnel. `grace` and `deadline` are the values of the
    spec.
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
    """True for `_` boxes. The service removes them when their last channel closes."""
    drive: bool
    """Whether the box has /wrk. Each start, and a restart of the mount, attaches it."""
    since: datetime
    """When the box entered its state.

    Like `idle_since` and `pinned_until`, this is a mark of elapsed time, not wall-clock time.
    """
    step: int = 0
    """Step of the current change. The row stores it before the step runs. 0: no change."""
    idle_since: datetime | None = None
    """Time of the last detach, or of the end of the last detached shell. None: neither has
    happened.
    """
    memory: bool = False
    """The box is suspended with its memory on the host's disk, so its processes can resume."""
    durable: bool = False
    """The service never removes the box, except at its deadline."""
    auto_suspend: bool = True
    """False: no elapsed time suspends or removes the box."""
    pinned_until: datetime | None = None
    """End of the pin that keeps the box awake. None: no pin."""
    pin_why: str = ""
    """The reason for the pin, in the user's words."""
    confidential: bool = False
    """The first attachment used the relay. The host's disk never gets the box's memory."""
    egress: str = "all"
    """`all`, `none`, or a list of names and networks."""
    disk_mb: int = 0
    """Size limit of the writable layer in MiB. 0: no limit."""
    pids: int = PIDS
    """Maximum number of processes and threads."""
    clamped: bool = False
    """The deadline is earlier than the requested one."""
    relay_key: str = ""
    """The public key, one OpenSSH line, that the SSH server inside a confidential box accepts."""
    profile: str | None = None
    """The profile of the box. "": no profile. None: unknown (older rows)."""
    runtime: str = ""
    """Name of the OCI runtime. Empty: the default of the backend."""
    containers: bool = False
    """The box may run containers of its own, and is never suspended."""

    @property
    def ref(self) -> str:
        """The owner's reference to the box: `name` or `workspace/name`."""
        return self.name if self.workspace is None else f"{self.workspace}/{self.name}"

    @property
    def relayed(self) -> str:
        """The owner's ssh command for a confidential box.

        `HOST` is a placeholder for the address of the SSH server (`names.jump`).
        """
        return f"ssh -J {UNNAMED} root@{self.ref}"
