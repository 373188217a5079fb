"""What `box_exec` shows of output while it comes: only what a client may get to see."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from boxd.boxes.limits.budgets.output import Allowance, Room
from boxd.mcp.tools.boxes.commands import collect, result_of
from boxd.mcp.tools.tool import Call
from tests.harness.simulation.world import ALICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.boxes.commands.exec import ExecRun
    from boxd.operations import Operations


class Talking:
    """A command that says a lot at once."""

    def write_eof(self) -> None:
        """Reads nothing."""

    async def pump(self, emit: Callable[[str, bytes], Awaitable[None]]) -> int:
        """All of it."""
        await emit("stdout", b"".join(b"%d\n" % number for number in range(1000)))
        await emit("stderr", b"\n")
        await emit("stdout", b"half")
        await emit("stdout", b" a line\n\nrest")
        return 0


async def test_of_many_lines_that_come_at_once_the_last_is_told() -> None:
    told: list[str] = []
    reserved: list[int] = []

    async def reserve(size: int) -> None:
        reserved.append(size)

    call = Call(ALICE, cast("Operations", None), {"max_output": 10_000}, told.append, reserve)
    with Room(Allowance()) as room:
        outcome = await collect(cast("ExecRun", Talking()), b"", call, room, time.monotonic())
    assert reserved == []
    done = await result_of(call, outcome)
    assert reserved == [len(done["stdout"]) + len(done["stderr"])]
    assert told == ["999", "half a line"]
    assert done["stdout"].endswith("999\nhalf a line\n\nrest")
    assert (done["exit_code"], done["truncated"]) == (0, False)
