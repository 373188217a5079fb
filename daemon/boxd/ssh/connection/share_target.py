"""The box of a share: for whoever knows its token, with any key, while share and box are there.

The token is looked up for each channel, so that nothing is opened once the share is over.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from boxd.errors import QuotaExceeded
from boxd.ssh.connection.limits import CHANNELS_PER_OWNER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.model.progress import Progress
    from boxd.operations import Operations
    from boxd.secret import Secret
    from boxd.ssh.connection.limits import Limits


class ShareTarget:
    """See the module. Holders see no agent of theirs in the box: it is somebody else's."""

    forwards_agent = False

    def __init__(self, operations: Operations, token: Secret, limits: Limits) -> None:
        self._operations = operations
        self._token = token
        self._limits = limits

    @contextlib.asynccontextmanager
    async def attach(self, why: str, progress: Progress) -> AsyncIterator[Attachment]:
        """The box, running and held, while the context lasts. InvalidShare, QuotaExceeded."""
        holder = await self._operations.shares.principal_of_share(self._token)
        # Not the owner's own channels: holders must not be able to keep the owner out.
        name = f"shares of {holder.owner}"
        if not self._limits.open_channel(name):
            raise QuotaExceeded(
                f"limit reached: {CHANNELS_PER_OWNER} channels of the shares of one owner;"
                " try again later"
            )
        try:
            held = self._operations.shares.attach_shared(holder, why=why, progress=progress)
            async with held as attachment:
                yield attachment
        finally:
            self._limits.close_channel(name)
