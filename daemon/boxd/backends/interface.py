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
    import socket
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this backend can do here. `why_no_suspend` is shown to users when it cannot."""

    suspend: bool
    """Memory goes to the disk and comes back."""
    fork: bool
    """A box is copied with its memory while it lives."""
    snapshot: bool
    """The disk of a box can be kept and copied."""
    disk_limit: bool
    """A box that fills its disk fails alone."""
    any_image: bool
    """Images need not be in the catalog."""
    why_no_suspend: str
    attaches_drives: bool = True
    """A mount of this host can be put into a running box; else its agent mounts the drive."""
    memory_ceiling: bool = True
    """All boxes together have a ceiling of memory, so that the host itself is never short of it."""


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """What to build a box from.

    `rootfs` is the image's unpacked root (never written), None for an `image` that only the backend
    knows; `runtime` is the guest runtime directory (mounted read-only at /.box), `run_dir` a
    directory of the box on the host, mounted at /run/box: it holds the tunnel socket and the
    agent's configuration.
    """

    box_id: str
    hostname: str
    image: str
    """Name in the catalog, or a reference that the backend understands."""
    rootfs: Path | None
    runtime: Path
    run_dir: Path
    cpus: float
    mem_mb: int
    pids: int
    egress: str
    """A policy as `boxd.backends.egress` reads it: `all`, `none`, or a list."""
    disk_mb: int = 0
    """Cap of the writable layer in MiB, where the backend can; 0: none."""
    template: bool = False
    """Made only to be copied: what is kept of it keeps no version of an image."""


@dataclass(frozen=True, slots=True)
class BackendBox:
    """A box that the backend holds. `running`: its init process lives."""

    box_id: str
    running: bool
    frozen: bool = False
    """It lives and stands still."""
    memory: bool = False
    """A complete image of its memory stands on the disk."""


@dataclass(frozen=True, slots=True)
class BoxStats:
    """Use of resources since the box started: CPU seconds, memory and writable layer in bytes."""

    cpu_s: float
    memory_bytes: int
    disk_bytes: int
    pids: int
    net_rx_bytes: int = 0
    """What the box received; of its present network interface."""
    net_tx_bytes: int = 0


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

    async def expect(self, roots: Mapping[str, Path], first: str) -> None:
        """Tells which images there are now, with their roots, before boxes are made from them.

        What takes long for `first`, the one of most boxes, is done at once; what is kept of others,
        and no box stands on, is given up. Boxes may be made meanwhile.
        """
        ...

    async def create(self, plan: BoxPlan) -> None:
        """Prepares root layer, network with its fence, cgroup and configuration; starts nothing."""
        ...

    async def start(self, box_id: str) -> None:
        """Starts the init process (the guest agent) of a created or stopped box.

        Memory of it on the disk is discarded.
        """
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
        """Ends all processes of the box, frozen ones too; disk and memory on the disk stay."""
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

    # Memory. Unsupported where `capabilities().suspend` is off.

    async def tcp_socket(self, box_id: str, family: int) -> socket.socket | None:
        """A non-blocking TCP socket that sees the network of a running box as from inside.

        None: the box's network is not to be had here; its tunnel leads to it.
        """
        ...

    async def freeze(self, box_id: str) -> None:
        """Has the processes of a running box stand still."""
        ...

    async def save_memory(self, box_id: str) -> None:
        """Writes the memory of a frozen box to the disk and makes it its memory in one step.

        The box is frozen and alive afterwards: `stop` completes a suspension, `thaw` undoes it.
        After an error it is frozen as well, and has no memory on the disk. BoxdError with one line
        for people when it holds something that cannot be kept.
        """
        ...

    async def thaw(self, box_id: str) -> None:
        """Has a frozen box run on. Its memory on the disk is discarded before."""
        ...

    async def resume(self, box_id: str, drive: Path | None) -> None:
        """Has a stopped box run on from its memory, which is used up by that.

        `drive` is the mount for its /wrk if it had one. MemoryLost when the memory cannot be
        brought back: nothing of the try is left then, and `start` works.
        """
        ...

    async def discard_memory(self, box_id: str) -> None:
        """Removes the memory of a box that does not run. No error if it has none."""
        ...

    # Snapshots. Unsupported where `capabilities().snapshot` is off.

    async def snapshot(self, box_id: str, snapshot_id: str, *, lasting: bool = True) -> None:
        """Keeps disk and memory of a box that is frozen or does not run.

        Of a frozen one, memory and disk are those of one moment; of a stopped one, its memory is
        kept if it has any. What fails leaves no snapshot. Without `lasting` it need not outlive
        the host's next crash, and the box stands still for a shorter time.
        """
        ...

    async def snapshot_bytes(self, snapshot_id: str) -> int:
        """What layer and memory of a snapshot take on the host's disk, shared parts included.

        NotFound.
        """
        ...

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Removes a snapshot. No error if it is unknown."""
        ...

    async def snapshots(self) -> tuple[str, ...]:
        """Ids of all snapshots on this host that belong to this installation."""
        ...

    async def restore_snapshot(self, box_id: str, snapshot_id: str) -> None:
        """Gives a box that does not run the disk and the memory of a snapshot. NotFound."""
        ...

    async def clone(self, plan: BoxPlan, snapshot_id: str) -> None:
        """As `create`, with disk and memory of a snapshot: `resume` or `start` follows. NotFound.

        The new box has its own name, network and run directory.
        """
        ...
