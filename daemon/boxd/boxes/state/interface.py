"""Interfaces of other packages that the lifecycle uses.

The composition root passes in the implementations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box
    from boxd.model.catalog import Flavor, Image
    from boxd.model.presence import Presence
    from boxd.tunnel.channel import Tunnel


class Tunnels(Protocol):
    """Connections to the agents of boxes; `boxd.tunnel.registry` implements it."""

    async def open(self, box_id: str, host_key: str) -> None:
        """Listen for the box's agent in its run directory; replaces an older listener."""
        ...

    async def get(self, box_id: str, timeout: float = 30) -> Tunnel:
        """Return the box's tunnel after its hello. Raises Unavailable after `timeout` seconds."""
        ...

    def peek(self, box_id: str) -> Tunnel | None:
        """Return the box's current tunnel, or None."""
        ...

    async def quiesce(self, box_id: str) -> Presence | None:
        """Close the tunnel before a freeze.

        The agent closes its end first, if it does so within 2 s. Returns what keeps the box
        awake, as the agent reported it, or None if it reported nothing.
        """
        ...

    async def close(self, box_id: str) -> None:
        """Close the tunnel and its listener. No error if there is none."""
        ...

    async def close_all(self) -> None:
        """Close all tunnels and listeners."""
        ...


class RunDirectories(Protocol):
    """Directories of boxes on the host; `boxd.backends.run_directories` implements it."""

    def path(self, box_id: str) -> Path:
        """Return the directory that the box shares with the daemon."""
        ...

    async def write(self, box_id: str, config: str, private_key: bytes) -> None:
        """Write the agent's configuration and host key; create the directory. Raises OSError."""
        ...

    async def exists(self, box_id: str) -> bool:
        """Return whether the box has a run directory on this host."""
        ...

    async def box_ids(self) -> set[str]:
        """Return the ids of all boxes that have a directory on this host, complete or not."""
        ...

    async def remove(self, box_id: str) -> None:
        """Remove the rest of a box's directory. No error if there is none. Raises OSError."""
        ...


class DriveAttacher(Protocol):
    """Attaches /wrk to boxes; `boxd.workspaces.host_drives` implements it."""

    async def prepare(self, owner: str, workspace: str | None) -> Path | None:
        """Create and mount the volume on this host, so that `attach` is quick.

        Returns the mount point, or None if boxes mount the drive themselves.
        """
        ...

    async def attach(self, box: Box) -> None:
        """Attach /wrk to the running box; replaces a stale mount."""
        ...

    def use(self, box: Box) -> None:
        """Count the resumed box as a user of the mount, which its memory contains."""
        ...

    async def detach(self, box: Box) -> None:
        """Detach /wrk. Raises Conflict naming the processes that hold it."""
        ...

    async def info(self, box: Box) -> dict[str, object]:
        """Return facts about the drive of the box as plain JSON values."""
        ...

    async def leave(self, box: Box) -> None:
        """Flush the box's writes before its tunnel closes.

        Bounded in time; never fails.
        """
        ...

    async def forget(self, box: Box) -> None:
        """Stop counting the stopped box as a user of the mount. No error if it was not one."""
        ...

    async def release_unused(self, wanted: set[tuple[str, str | None]]) -> None:
        """Unmount drives of an earlier daemon that no box of these workspaces uses."""
        ...


class Catalog(Protocol):
    """Images and flavors; `boxd.images.catalog` implements it."""

    @property
    def default_flavor(self) -> Flavor:
        """The flavor of a box whose spec and profile name none."""
        ...

    def images(self) -> list[Image]:
        """Return all images, built or not."""
        ...

    def flavors(self) -> list[Flavor]:
        """Return all flavors."""
        ...

    def rootfs(self, name: str) -> Path:
        """Return the unpacked root of an image.

        Raises UnknownImage, or Unavailable if not built.
        """
        ...
