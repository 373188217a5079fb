"""The interface to the drives of all workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import datetime

    from boxd.model.usage import DriveUse
    from boxd.workspaces.drive import Filesystem


class Drives(Protocol):
    """The drives of all workspaces, for use in this process: `boxd.workspaces.workspace_drives`."""

    def use(
        self, owner: str, workspace: str | None, *, create: bool
    ) -> AbstractAsyncContextManager[Filesystem | None]:
        """Yield the volume's Filesystem; None if it does not exist and `create` is false."""
        ...

    async def usage(self, owner: str) -> dict[str | None, DriveUse]:
        """Return the use of each drive of an owner, without drives that were never used.

        Raises Unavailable.
        """
        ...

    def closing(self, owner: str, workspace: str) -> AbstractContextManager[None]:
        """Reject new users of a drive with Conflict while the context lasts."""
        ...

    async def is_empty(self, owner: str, workspace: str) -> bool:
        """Return whether the drive has no files, or does not exist. Raises Unavailable."""
        ...

    async def remove(self, owner: str, workspace: str) -> datetime | None:
        """Remove the drive and its files, if it exists; call it inside `closing`.

        Returns the time until which the operator can restore the drive; None: the drive is deleted.
        Raises Conflict while the drive is in use, and Unavailable; the call can be repeated.
        """
        ...

    async def sizes(self) -> dict[str, int]:
        """Return the bytes in the drives of each owner. Raises Unavailable."""
        ...
