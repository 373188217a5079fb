"""A client that comes back by itself whenever its connection breaks: autossh."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.harness.servers.fault_proxy import FaultProxy, Toxic
from tests.harness.ssh.forwards import shout, talk
from tests.harness.ssh.openssh import HOST, Client, kill, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance

ALIVE = ("-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2")
FORWARD = ("-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindUnlink=yes")


@asynccontextmanager
async def autossh(client: Client, local: Path, target: str) -> AsyncIterator[None]:
    """Keeps `-L local:target` up without a session of its own."""
    words = [*client.options(), *ALIVE, *FORWARD, "-l", "web", "-N", "-L", f"{local}:{target}"]
    command = ["env", "AUTOSSH_GATETIME=0", "autossh", "-M", "0", *words, HOST]
    async with running(command) as process:
        try:
            yield
        finally:
            kill(process, signal.SIGTERM)  # which ends its ssh, too
            await process.wait()


async def answers(local: Path) -> None:
    """Waits until something answers there, rightly."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await talk(local, b"hello")
            except OSError:
                answer = b""
            if answer:
                assert answer == b"HELLO!"
                return
            await asyncio.sleep(0.05)


async def test_a_forwarding_comes_back_after_each_break(
    front_door: Entrance, tmp_path: Path
) -> None:
    """One connection is reset; the packets of another one no longer arrive."""
    detour = FaultProxy((HOST, 0), (HOST, front_door.door.port))
    assert isinstance(detour.listen, tuple)
    client = Client(tmp_path / "user", detour.listen[1], front_door.door.host_key)
    server = await asyncio.start_server(shout, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    local = tmp_path / "l"
    try:
        async with server, autossh(client, local, f"{HOST}:{port}"):
            await answers(local)
            before = detour.connections
            detour.reset()
            await until(lambda: detour.connections > before)
            await answers(local)
            before = detour.connections
            detour.toxic = Toxic(black_hole=True)
            await until(lambda: detour.connections > before)
            # The next one, whose beginning was lost as well, would wait for ever.
            detour.toxic = Toxic()
            detour.reset()
            await answers(local)
    finally:
        detour.close()
    (box,) = await front_door.store.all_boxes()
    await until(lambda: front_door.lifecycle.attachments.count(box.id) == 0)
