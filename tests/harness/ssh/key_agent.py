"""An ssh-agent that holds a user's key."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.harness.ssh.openssh import listens, run, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def ssh_agent(path: Path, key: Path) -> AsyncIterator[None]:
    """Run an `ssh-agent` that holds the key."""
    async with running(["ssh-agent", "-D", "-a", str(path)]):
        await until(lambda: listens(path))
        added = await run(["env", f"SSH_AUTH_SOCK={path}", "ssh-add", "-q", str(key)])
        assert added.status == 0
        yield
