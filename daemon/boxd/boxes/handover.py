"""A command in a box with variables that nothing in the box has seen but the command itself.

What goes through the tunnel is sealed to a program that becomes the command (`box_guest.handover`).
The box's own agent, which lives as long as the box, passes on what it cannot read: so nothing of it
is in that memory when the box sleeps later.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from box_guest import frames
from box_guest.sealing import HANDOVER, seal
from boxd.boxes.exec import ExecRun, exit_code
from boxd.boxes.output import shown_line
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from boxd.boxes.exec import ExecRequest
    from boxd.secret import Secret
    from boxd.tunnel.channel import Exec, Tunnel

HANDOVER_S = 30.0
"""A box that has not shown its key in this time has something else to do."""
MAX_REASON = 4096
"""Bytes that are read of what the program complains of."""


@contextlib.asynccontextmanager
async def running_with(
    tunnel: Tunnel, request: ExecRequest, env: Mapping[str, str], own: Mapping[str, Secret]
) -> AsyncIterator[ExecRun]:
    """As `running`, with the variables `own` above all others. Raises Unavailable."""
    channel = await tunnel.start_handover(env={**env, **request.env})
    run = ExecRun(channel, request.timeout_s)
    try:
        frame = await _sealed(channel, tunnel.box_id, request.cmd, own)
        try:
            async with asyncio.timeout(HANDOVER_S):
                await run.write(frame)
        except TimeoutError:
            raise Unavailable(
                f"the box did not take the token it was handed within {HANDOVER_S:g} s; try again"
            ) from None
        yield run
    finally:
        await run.end()


async def _sealed(channel: Exec, box_id: str, command: str, own: Mapping[str, Secret]) -> bytes:
    """The frame for the program that the channel has started. Raises Unavailable."""
    revealed = {name: secret.reveal() for name, secret in own.items()}
    words = [command.encode("utf-8"), *frames.variables(revealed)]
    try:
        async with asyncio.timeout(HANDOVER_S):
            key = frames.key_in(await _greeting(channel))
        text = seal(frames.joined(words), key, purpose=HANDOVER, box_id=box_id)
        return frames.framed(text)
    except TimeoutError:
        why = f"its program for that did not begin within {HANDOVER_S:g} s"
    except ValueError as error:
        why = f"its program for that does not act as it is meant to: {error}"
    raise Unavailable(f"the box could not be handed a token: {why}; try again")


async def _greeting(channel: Exec) -> bytes:
    """What the program says first, as far as a greeting is long. Raises Unavailable."""
    said = {"stdout": bytearray(), "stderr": bytearray()}
    async with contextlib.aclosing(channel.output()) as output:
        async for stream, data in output:
            said[stream] += data[: MAX_REASON - len(said[stream])]
            if len(said["stdout"]) >= frames.GREETING_SIZE:
                return bytes(said["stdout"])
    status = await channel.wait()
    reason = (
        shown_line(bytes(said["stderr"].strip())) or f"it ended with exit code {exit_code(status)}"
    )
    raise Unavailable(f"the box could not be handed a token: {reason}")
