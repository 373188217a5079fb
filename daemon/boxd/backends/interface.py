"""What a backend does. Implementations: `runc` (real), `fake` (tests of the layers above).

A backend makes, starts, stops and removes boxes by id; it knows nothing of owners, names or
states. Every method is idempotent: calling it again after a crash finishes what was begun. A
failed `create` or `start` leaves nothing behind that `destroy` does not remove. Nothing outside
this folder may assume that a box is a local process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this backend can do here. `why_no_suspend` is shown to users when it cannot."""

    suspend: bool
    fork: bool
    why_no_suspend: str


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """What to build a box from.

    `rootfs` is the image's unpacked root (never written), `runtime` the guest runtime directory
    (mounted read-only at /.box), `run_dir` a directory of the box on the host, mounted at
    /run/box: it holds the tunnel socket and the agent's configuration.
    """

    box_id: str
    hostname: str
    rootfs: Path
    runtime: Path
    run_dir: Path
    cpus: float
    mem_mb: int
    pids: int
    egress: str
    """A policy as `boxd.backends.egress` reads it: `all`, `none`, or a list."""


@dataclass(frozen=True, slots=True)
class BackendBox:
    """A box that the backend holds. `running`: its init process lives."""

    box_id: str
    running: bool


@dataclass(frozen=True, slots=True)
class BoxStats:
    """Use of resources since the box started: CPU seconds, memory and writable layer in bytes."""

    cpu_s: float
    memory_bytes: int
    disk_bytes: int
    pids: int


class Backend(Protocol):
    """Makes boxes."""

    name: str

    async def setup(self) -> None:
        """Prepares the host once at daemon start. Raises boxd.errors.Unavailable with a remedy."""
        ...

    async def close(self) -> None:
        """Lets go of what `setup` made and no box uses. Boxes go on living."""
        ...

    def capabilities(self) -> Capabilities:
        """What can be done here; valid after `setup`."""
        ...

    async def create(self, plan: BoxPlan) -> None:
        """Prepares root layer, network with its fence, cgroup and configuration; starts nothing."""
        ...

    async def start(self, box_id: str) -> None:
        """Starts the init process (the guest agent) of a created or stopped box."""
        ...

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Makes the mount at `source` (on this host) appear at /wrk of the running box.

        Replaces a stale mount there.
        """
        ...

    async def detach_drive(self, box_id: str) -> None:
        """Takes /wrk away; Conflict naming the holders when it is in use. No error if absent."""
        ...

    async def stop(self, box_id: str) -> None:
        """Ends all processes of the box; its disk stays and `start` works again."""
        ...

    async def destroy(self, box_id: str) -> None:
        """Removes the box with everything of it. No error if it is unknown."""
        ...

    async def list(self) -> list[BackendBox]:
        """All boxes on this host that belong to this installation."""
        ...

    async def stats(self, box_id: str) -> BoxStats:
        """Present use of resources."""
        ...

    async def suspend(self, box_id: str) -> None:
        """Memory to disk, processes ended. Unsupported where `capabilities` says so."""
        ...

    async def resume(self, box_id: str) -> None:
        """Undoes `suspend`."""
        ...
