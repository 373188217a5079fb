"""Command lines of the management CLI on fakes, without the SSH front door."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Endpoint
from boxd.ssh.cli.registry import CLI, execute
from tests.harness.simulation.world import ALICE

if TYPE_CHECKING:
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Console, Result
    from tests.harness.simulation.world import World

ENDPOINT = Endpoint("host", 22, "SHA256:x", "ssh-ed25519 AAAA")


@dataclass
class Typed:
    """Input that is available from the start, in pieces, and the written output."""

    pieces: list[bytes] = field(default_factory=list)
    terminal: bool = False
    written: bytes = b""
    errors: bytes = b""

    async def read(self) -> bytes:
        """Return the next piece."""
        return self.pieces.pop(0) if self.pieces else b""

    async def write(self, data: bytes) -> None:
        """Record the output."""
        self.written += data

    async def write_error(self, data: bytes) -> None:
        """Record the output to standard error."""
        self.errors += data


async def run(
    world: World,
    line: str | None,
    principal: Principal = ALICE,
    stdio: Typed | None = None,
    console: Console = CLI,
    endpoint: Endpoint = ENDPOINT,
) -> Result:
    """Run one command line, by default as Alice."""
    return await execute(
        console,
        line,
        principal=principal,
        operations=world.operations,
        endpoint=endpoint,
        now=world.clock.now(),
        stdio=stdio or Typed(),
    )
