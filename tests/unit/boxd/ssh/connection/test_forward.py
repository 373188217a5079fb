"""What becomes of a forwarding whose connection ends at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.ssh.connection.forward import Forwarder, port_dialer
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.model.progress import Progress


def unattached(why: str, progress: Progress) -> AbstractAsyncContextManager[Attachment]:
    raise AssertionError("nobody is there any more")


async def test_who_waits_for_a_forwarding_that_never_began_is_told() -> None:
    """The client is gone before the task that dials for it has run: asyncssh's own waits for it."""
    tasks = BackgroundTasks()
    released: list[bool] = []
    forwarder = Forwarder(tasks, unattached, "forward")
    opening = asyncio.create_task(
        forwarder.open(port_dialer("127.0.0.1", 9), lambda: released.append(True))
    )
    await asyncio.sleep(0)
    tasks.cancel()
    with pytest.raises(asyncssh.ChannelOpenError, match="the connection is closing"):
        async with asyncio.timeout(60):
            await opening
    assert released == [True]
