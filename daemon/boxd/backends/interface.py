"""The interface of backends. Implementations: `runc` (default), `docker`, and a fake for tests.

A backend creates, starts, stops and removes boxes by id. It knows nothing about owners, names or
box states. Every method is idempotent: a call after a crash completes interrupted work. `destroy`
removes everything that a failed `create` or `start` may leave. Code outside this folder must not
assume that a box is a local process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of this backend on this host. `why_no_suspend` is the reason that users see."""

    suspend: bool
    """Boxes can be suspended to disk and resumed with their memory."""
    fork: bool
    """A running box can be copied with its memory."""
    snapshot: bool
    """The disk of a box can be saved and copied."""
    disk_limit: bool
    """A full disk affects its box only."""
    any_image: bool
    """Images outside the catalog can be used."""
    why_no_suspend: str
    attaches_drives: bool = True
    """The host can mount a drive in a running box. If not, the box's agent mounts it."""
    memory_ceiling: bool = True
    """All boxes together have a memory limit, so that they cannot exhaust the host's memory."""
    call_filter: str = ""
    """Digest of the system call filter. A memory image contains the filter of its box."""


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """The parameters of a new box.

    `rootfs` is the image's unpacked root, which is never written. It is None for an `image` that
    only the backend knows. `runtime` is the guest runtime directory, mounted read-only at /.box.
    `run_dir` is a directory of the box on the host, mounted at /run/box; it contains the tunnel
    socket and the agent's configuration.
    """

    box_id: str
    hostname: str
    image: str
    """Name in the catalog, or a reference for the backend."""
    rootfs: Path | None
    runtime: Path
    run_dir: Path
    cpus: float
    mem_mb: int
    pids: int
    egress: str
    """A policy for `boxd.backends.network.egress`: `all`, `none`, or a list."""
    disk_mb: int = 0
    """Size limit of the writable layer in MiB, if the backend supports it; 0: none."""
    template: bool = False
    """The box exists only to be copied. Its snapshots do not keep a version of an image."""
    oci_runtime: str = ""
    """Name of the OCI runtime that runs the box. Empty: the default of the backend."""
    containers: bool = False
    """The box may run containers of its own. Its memory is never saved."""


@dataclass(frozen=True, slots=True)
class BackendBox:
    """A box of the backend. `running`: its init process is alive."""

    box_id: str
    running: bool
    frozen: bool = False
    """The box is alive, but its processes are frozen."""
    memory: bool = False
    """The disk has a complete image of the box's memory."""


@dataclass(frozen=True, slots=True)
class InitState:
    """State of the main thread of a box's init, which runs the agent's event loop."""

    stopped: str = ""
    """Reason why the thread is stopped, for the box's owner; empty if it is not stopped."""
    sleeping: bool = False
    """The thread waits for an event, not for a processor or a disk."""
    switches: int = 0
    """Number of context switches. While the number does not change, the thread does not run."""


@dataclass(frozen=True, slots=True)
class BoxStats:
    """Resource usage since the box started: CPU seconds; memory and writable layer in bytes."""

    cpu_s: float
    memory_bytes: int
    disk_bytes: int
    pids: int
    net_rx_bytes: int = 0
    """Bytes received by the box's current network interface."""
    net_tx_bytes: int = 0
    oom_kills: int = 0
    """Number of processes killed because the box's memory was full."""
    saved_memory_bytes: int = 0
    """Bytes of a suspended box's memory image on the host's disk."""


class Backend(Protocol):
    """Creates and runs boxes."""

    name: str

    async def setup(self) -> None:
        """Prepare the host once at daemon start. Raises boxd.errors.Unavailable with a remedy."""
        ...

    async def close(self) -> None:
        """Release everything that `setup` created and that no box uses. Boxes continue to run."""
        ...

    def capabilities(self) -> Capabilities:
        """Return the supported features; valid after `setup`."""
        ...

    async def require_kind(self, runtime: str, *, containers: bool) -> None:
        """Raise Unsupported if boxes cannot have this runtime, or containers of their own, here.

        The error says what the operator can do. `runtime` empty: the default.
        """
        ...

    async def expect(self, roots: Mapping[str, Path], first: str) -> None:
        """Announce the current images and their roots, before boxes are created from them.

        The backend immediately does slow preparations for `first`, the image of most boxes. It
        discards unused data of other roots. Boxes may be created meanwhile.
        """
        ...

    async def create(self, plan: BoxPlan) -> None:
        """Prepare root layer, network with fence, cgroup and configuration, without a process."""
        ...

    async def start(self, box_id: str) -> None:
        """Start the init process (the guest agent) of a created or stopped box.

        Discards its memory on the disk.
        """
        ...

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Mount the host's mount `source` at /wrk of the running box.

        Replaces a stale mount there.
        """
        ...

    async def detach_drive(self, box_id: str) -> None:
        """Unmount /wrk. Raises Conflict with the names of the holders if in use.

        No error if absent.
        """
        ...

    async def stop(self, box_id: str) -> None:
        """End all processes of the box, even frozen ones. Disk and saved memory stay."""
        ...

    async def init_state(self, box_id: str) -> InitState:
        """Return the state of the box's init, or the default if the box is not running."""
        ...

    async def suspect_inits(self, box_ids: Collection[str]) -> set[str]:
        """Return the ids in `box_ids` of boxes whose init may have stopped or ended.

        One cheap pass checks all of them. `init_state` and `list` are exact.
        """
        ...

    async def destroy(self, box_id: str) -> None:
        """Remove the box completely. No error if it is unknown."""
        ...

    async def list(self) -> list[BackendBox]:
        """Return all boxes on this host that belong to this installation."""
        ...

    async def stats(self, box_id: str) -> BoxStats:
        """Return the current resource usage."""
        ...

    async def oom_kills(self, box_id: str) -> int:
        """Return only the figure of `stats`, which is cheap. 0 if the box is not running."""
        ...

    # Memory. Unsupported if `capabilities().suspend` is off.

    async def tcp_socket(self, box_id: str, family: int) -> socket.socket | None:
        """Return a non-blocking TCP socket in the network of a running box.

        None: the network cannot be reached from this process; use the box's tunnel.
        """
        ...

    async def freeze(self, box_id: str) -> None:
        """Freeze the processes of a running box."""
        ...

    async def save_memory(self, box_id: str) -> None:
        """Write the memory of a frozen box to the disk, and publish it in one step.

        The box is frozen and alive afterwards: `stop` completes a suspension, `thaw` undoes it.
        After an error the box is frozen too, and has no memory on the disk. Raises BoxdError with
        one line for users if the box holds something that cannot be saved.
        """
        ...

    async def thaw(self, box_id: str) -> None:
        """Discard the memory of a frozen box on the disk, then thaw the box."""
        ...

    async def resume(self, box_id: str, drive: Path | None) -> None:
        """Resume a stopped box with its memory. The memory can be used only once.

        `drive` is the mount for its /wrk, if it had one. Raises MemoryLost if the memory cannot be
        restored: then nothing of the attempt remains, and `start` works.
        """
        ...

    async def rename(self, box_id: str, hostname: str) -> None:
        """Rename a frozen box that was created with `plan.template`, and make it an ordinary box.

        Its processes see the new name when they run again.
        """
        ...

    async def discard_memory(self, box_id: str) -> None:
        """Remove the memory of a box that is not running. No error if it has none."""
        ...

    # Snapshots. Unsupported if `capabilities().snapshot` is off.

    async def snapshot(
        self, box_id: str, snapshot_id: str, *, lasting: bool = True, memory: bool = True
    ) -> None:
        """Save disk and memory of a box that is frozen or not running.

        Memory and disk of a frozen box are consistent. The snapshot of a stopped box includes its
        memory if it has any. A failure leaves no snapshot. Without `lasting`, the snapshot may be
        lost in a crash of the host, but the box is frozen for a shorter time. Without `memory`, it
        contains only the disk.
        """
        ...

    async def snapshot_bytes(self, snapshot_id: str) -> int:
        """Return the bytes of a snapshot's layer and memory on disk, shared parts included.

        Raises NotFound.
        """
        ...

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot. No error if it is unknown."""
        ...

    async def snapshots(self) -> tuple[str, ...]:
        """Return the ids of all snapshots on this host that belong to this installation."""
        ...

    async def restore_snapshot(self, box_id: str, snapshot_id: str) -> None:
        """Replace disk and memory of a stopped box with those of a snapshot. Raises NotFound."""
        ...

    async def clone(self, plan: BoxPlan, snapshot_id: str) -> None:
        """Create a box like `create`, but with disk and memory of a snapshot. Raises NotFound.

        Call `resume` or `start` next. The new box has its own name, network and run directory.
        """
        ...
