"""What the lifecycle needs from the parts around it; the composition root hands them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box
    from boxd.model.catalog import Flavor, Image
    from boxd.tunnel.channel import Tunnel


class Tunnels(Protocol):
    """Connections of the agents; see boxd.tunnel.registry."""

    async def open(self, box_id: str, directory: Path, host_key: str) -> None:
        """Listens for the box's agent in `directory`; replaces an older listener."""
        ...

    async def get(self, box_id: str, timeout: float = 30) -> Tunnel:
        """The box's tunnel after its hello; Unavailable when none comes in `timeout` seconds."""
        ...

    async def quiesce(self, box_id: str) -> int | None:
        """As `close`, before a freeze: the agent is told and closes its end first, if it does so
        in 2 s. Returns the number of detached shells that it told, None when it told nothing."""
        ...

    async def close(self, box_id: str) -> None:
        """Ends the tunnel and its listener. No error if there is none."""
        ...

    async def close_all(self) -> None:
        """Ends all tunnels and listeners."""
        ...


class DriveAttacher(Protocol):
    """Brings /wrk into boxes; see boxd.workspaces.attach."""

    async def prepare(self, owner: str, workspace: str | None) -> Path | None:
        """Has the volume made and mounted on this host, so that `attach` is quick; says where.
        None where boxes mount it themselves."""
        ...

    async def attach(self, box: Box) -> None:
        """Makes /wrk appear in the running box; replaces a stale one."""
        ...

    def use(self, box: Box) -> None:
        """The box runs on with the mount in it: it is one of its users again."""
        ...

    async def detach(self, box: Box) -> None:
        """Takes /wrk away; Conflict naming the holders when it is in use."""
        ...

    async def info(self, box: Box) -> dict[str, object]:
        """What to tell about the drive of the box: plain JSON values."""
        ...

    async def leave(self, box: Box) -> None:
        """The box is about to end, with its tunnel: what it wrote is brought to safety. Bounded in
        time; never fails."""
        ...

    async def forget(self, box: Box) -> None:
        """The box stopped: its use of the mount is over. No error if it had none."""
        ...

    async def release_unused(self, wanted: set[tuple[str, str | None]]) -> None:
        """Ends mounts that an earlier daemon left and no box of these workspaces uses."""
        ...


class Catalog(Protocol):
    """Images and flavors; see boxd.images.catalog."""

    @property
    def default_flavor(self) -> Flavor:
        """The caps of a box that asks for none."""
        ...

    def images(self) -> list[Image]:
        """All images, built or not."""
        ...

    def flavors(self) -> list[Flavor]:
        """All flavors."""
        ...

    def rootfs(self, name: str) -> Path:
        """The unpacked root of an image; UnknownImage; Unavailable when it is not built."""
        ...
