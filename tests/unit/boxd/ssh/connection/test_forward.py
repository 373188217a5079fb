"""Forwardings whose connection ends at once."""

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


def attach_fails(why: str, progress: Progress) -> AbstractAsyncContextManager[Attachment]:
    raise AssertionError("the task must not start")


async def test_a_forwarding_that_is_cancelled_before_its_first_step_is_rejected() -> None:
    """The client disconnects before the dialling task runs; asyncssh waits for the result."""
    tasks = BackgroundTasks()
    closed: list[bool] = []
    forwarder = Forwarder(tasks, attach_fails, "forward")
    opening = asyncio.create_task(
        forwarder.open(port_dialer("127.0.0.1", 9), lambda: closed.append(True))
    )
    await asyncio.sleep(0)
    tasks.cancel()
    with pytest.raises(asyncssh.ChannelOpenError, match="the connection is closing"):
        async with asyncio.timeout(60):
            await opening
    assert closed == [True]
