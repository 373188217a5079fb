"""Output of a command is held while its reader has some, and goes on to whoever reads next."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from boxd.tunnel.channel import Exec
from tests.harness.wait import until

if TYPE_CHECKING:
    import asyncssh


class Channel:
    """What holds and lets go."""

    def __init__(self, command: Exec) -> None:
        self.command = command
        self.calls: list[str] = []

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing is written."""

    def pause_reading(self) -> None:
        """Holds."""
        self.calls.append("pause")

    def resume_reading(self) -> None:
        """Lets go."""
        self.calls.append("resume")


async def test_who_stops_reading_leaves_the_rest_to_the_next_reader() -> None:
    command = Exec()
    channel = Channel(command)
    command.connection_made(cast("asyncssh.SSHClientChannel[bytes]", channel))
    command.data_received(b"first", None)
    assert channel.calls == ["pause"]
    async with aclosing(command.output()) as output:
        assert await anext(output) == ("stdout", b"first")
        assert channel.calls == ["pause"]
    rest = asyncio.ensure_future(anext(command.output()))
    await until(lambda: channel.calls == ["pause", "resume"])
    command.data_received(b"second", 1)
    assert await rest == ("stderr", b"second")
