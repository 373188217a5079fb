"""File watches: changes of files in a box, as they happen."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from box_guest.shared.requests import MalformedMessage
from box_guest.shared.watch_messages import watched_path
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadRequest
from boxd.tunnel.watches import watching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.operations.boxes import BoxOperations
    from boxd.principal import Principal
    from boxd.tunnel.watches import WatchReader

WHY = "watch"
"""The reason of the attachment of a watch."""


class WatchOperations:
    """Watches files in boxes. Holds no state."""

    def __init__(self, boxes: BoxOperations) -> None:
        self._boxes = boxes

    @asynccontextmanager
    async def watch_files(
        self, p: Principal, box: str, ws: str | None, path: bytes, *, recursive: bool
    ) -> AsyncIterator[WatchReader]:
        """Watch a directory of a box while the context lasts. The watch keeps the box awake.

        A relative path starts at the home of the box's account. Raises what `BoxOperations.attach`
        and `boxd.tunnel.watches.watching` raise.
        """
        try:
            text = watched_path(path.decode("utf-8", "surrogateescape"))
        except MalformedMessage as error:
            raise BadRequest(f"the watch needs the path of a directory: {error}") from None
        access = BoxAccess(box, kind="reference", why=WHY, ws=ws, secrets=False)
        async with (
            self._boxes.attach(p, access) as attachment,
            watching(attachment.tunnel, text, recursive=recursive) as reader,
        ):
            yield reader
