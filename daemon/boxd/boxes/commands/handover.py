"""Commands with secret variables that only the command itself can read.

The daemon seals the variables to a program in the box that then executes the command
(`box_guest.handover`). The agent of the box, which lives as long as the box, forwards the sealed
bytes and cannot read them. So a later suspension never saves the variables with its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from box_guest.shared import frames
from box_guest.shared.sealing import HANDOVER, seal
from boxd.boxes.commands.exec import ExecRun, exit_code
from boxd.boxes.commands.output import shown_line
from boxd.errors import Unavailable
from boxd.observation import UNOBSERVED, Work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from boxd.boxes.commands.exec import ExecRequest
    from boxd.boxes.presence.oom import OomCounter
    from boxd.observation import Observer
    from boxd.secret import Secret
    from boxd.tunnel.channel import Exec, Tunnel

HANDOVER_S = 30.0
"""Seconds within which the program must show its key and accept the variables."""
MAX_REASON = 4096
"""Maximum number of bytes to read of the program's error message."""


@contextlib.asynccontextmanager
async def running_with(
    tunnel: Tunnel,
    request: ExecRequest,
    env: Mapping[str, str],
    own: Mapping[str, Secret],
    oom: OomCounter | None = None,
    *,
    observer: Observer = UNOBSERVED,
) -> AsyncIterator[ExecRun]:
    """Like `running`; the variables `own` override all others. Raises Unavailable."""
    with observer.work(Work.EXEC):
        oom_before = 0 if oom is None else await oom.read()
        channel = await tunnel.start_handover(env={**env, **request.env})
        run = ExecRun(channel, request.timeout_s, oom, oom_before)
        try:
            frame = await _sealed(channel, tunnel.box_id, request.cmd, own)
            try:
                async with asyncio.timeout(HANDOVER_S):
                    await run.write(frame)
            except TimeoutError:
                raise Unavailable(
                    f"the box did not accept the token within {HANDOVER_S:g} s; try again"
                ) from None
            yield run
        finally:
            await run.end()


async def _sealed(channel: Exec, box_id: str, command: str, own: Mapping[str, Secret]) -> bytes:
    """Return the frame for the program that the channel started. Raises Unavailable."""
    revealed = {name: secret.reveal() for name, secret in own.items()}
    words = [command.encode("utf-8"), *frames.variables(revealed)]
    try:
        async with asyncio.timeout(HANDOVER_S):
            key = frames.key_in(await _greeting(channel))
        text = seal(frames.joined(words), key, purpose=HANDOVER, box_id=box_id)
        return frames.framed(text)
    except TimeoutError:
        why = f"its handover program did not start within {HANDOVER_S:g} s"
    except ValueError as error:
        why = f"its handover program broke the protocol: {error}"
    raise Unavailable(f"cannot hand a token to the box: {why}; try again")


async def _greeting(channel: Exec) -> bytes:
    """Return the first output of the program, up to the length of a greeting.

    Raises Unavailable.
    """
    chunks = {"stdout": bytearray(), "stderr": bytearray()}
    async with contextlib.aclosing(channel.output()) as output:
        async for stream, data in output:
            chunks[stream] += data[: MAX_REASON - len(chunks[stream])]
            if len(chunks["stdout"]) >= frames.GREETING_SIZE:
                return bytes(chunks["stdout"])
    status = await channel.wait()
    reason = (
        shown_line(bytes(chunks["stderr"].strip()))
        or f"it ended with exit code {exit_code(status)}"
    )
    raise Unavailable(f"cannot hand a token to the box: {reason}")
