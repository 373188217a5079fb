"""The box of a share. Its token opens the box, with any key, while share and box exist.

Each channel checks the token again, so no channel opens after the share has ended.
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
    from boxd.ssh.connection.limits import ConnectionLimits


class ShareTarget:
    """The box that a share's token opens.

    Token holders cannot forward their SSH agent, because the box belongs to another owner.
    """

    forwards_agent = False

    def __init__(self, operations: Operations, token: Secret, limits: ConnectionLimits) -> None:
        self._operations = operations
        self._token = token
        self._limits = limits

    @contextlib.asynccontextmanager
    async def attach(self, why: str, progress: Progress) -> AsyncIterator[Attachment]:
        """Hold the running box while the context lasts.

        Raises InvalidShare, and QuotaExceeded if the owner's shares have too many channels.
        """
        holder = await self._operations.shares.principal_of_share(self._token)
        # Shares have a count of their own, so that token holders cannot lock out the owner.
        count_name = f"shares of {holder.owner}"
        if not self._limits.open_channel(count_name):
            raise QuotaExceeded(
                f"limit reached: {CHANNELS_PER_OWNER} channels of the shares of one owner;"
                " try again later"
            )
        try:
            attaching = self._operations.shares.attach_shared(holder, why=why, progress=progress)
            async with attaching as attachment:
                yield attachment
        finally:
            self._limits.close_channel(count_name)
