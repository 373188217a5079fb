"""Ports of boxes: which programs in a box listen, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Conflict, NotFound
from boxd.model.box import BoxState
from boxd.model.port import listening_ports
from boxd.tunnel.files import Listing, box_files

if TYPE_CHECKING:
    from boxd.model.box import Box
    from boxd.model.port import ListeningPort
    from boxd.operations.boxes import BoxOperations
    from boxd.operations.shared.box_directory import BoxDirectory
    from boxd.principal import Principal
    from boxd.tunnel.files import BoxFiles

TABLES = (b"/proc/net/tcp", b"/proc/net/tcp6")
MAX_TABLE = 1024 * 1024
"""Bytes of a table of sockets that are read; about 7,000 sockets."""


class PortOperations:
    """Lists the ports of boxes. Holds no state."""

    def __init__(self, directory: BoxDirectory, boxes: BoxOperations) -> None:
        self._directory = directory
        self._boxes = boxes

    async def list_ports(
        self, p: Principal, ref: str, ws: str | None = None
    ) -> tuple[Box, list[ListeningPort]]:
        """Return a running box, and the TCP ports on which its programs listen.

        Does not wake the box: raises Conflict if it does not run. Raises what `resolve` of the
        directory and `attach` of boxes raise.
        """
        box = await self._directory.resolve(p, ref, ws)
        if box.state is not BoxState.RUNNING:
            raise Conflict(
                f"box {box.ref} is {box.state.value}, so its ports are not known; resume it first"
            )
        access = BoxAccess(box, kind="reference", why="ports", secrets=False)
        async with (
            self._boxes.attach(p, access) as attachment,
            box_files(attachment.tunnel) as files,
        ):
            tables = [await _table(files, path) for path in TABLES]
        return box, listening_ports(*tables)


async def _table(files: BoxFiles, path: bytes) -> str:
    """Return a table of sockets; "" if the box has none, as without IPv6."""
    try:
        content = await files.read(path, 0, MAX_TABLE)
    except NotFound:
        return ""
    return "" if isinstance(content, Listing) else content.data.decode("ascii", "replace")
