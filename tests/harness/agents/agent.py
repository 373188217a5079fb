"""A guest agent as a plain local process, and the daemon's end of its tunnel."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from box_guest import protocol
from boxd.backends.run_directories import bind_tunnel
from boxd.tunnel.registry import TunnelRegistry, new_identity
from tests.harness.ssh.openssh import kill

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Mapping

    from boxd.errors import BoxdError
    from boxd.model.presence import Presence
    from boxd.tunnel.channel import ExitStatus, Terminal, Tunnel

BOX_ID = "b0" * 16
STOP_S = 20.0


@dataclass
class Finished:
    """The whole output and the exit of a command."""

    stdout: bytes
    stderr: bytes
    status: ExitStatus


@dataclass
class LocalBox:
    """One agent process with its configuration, and a registry that listens for it."""

    root: Path
    public: str
    requests: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    refusal: BoxdError | None = None
    """The error that answers each request, in place of `answer`."""
    answer: dict[str, Any] = field(default_factory=lambda: {"path": "/wrk"})
    shells: list[int] = field(default_factory=list)
    """The agent's reports about detached shells."""
    commands: list[int] = field(default_factory=list)
    """The agent's reports about background commands."""
    misbehaviour: list[str] = field(default_factory=list)
    box_id: str = BOX_ID
    process: asyncio.subprocess.Process | None = None

    directories: dict[str, Path] = field(default_factory=dict)
    """Run directories of other boxes by id."""

    def __post_init__(self) -> None:
        self.registry = TunnelRegistry(
            self.root / "daemon_key",
            self.bind,
            self._requested,
            self._reported,
            lambda _, text: self.misbehaviour.append(text),
        )

    def _reported(self, _box_id: str, presence: Presence) -> None:
        self.shells.append(presence.shells)
        self.commands.append(presence.commands)

    async def bind(self, box_id: str) -> socket.socket:
        """Return the socket on which the agent of a box dials."""
        return bind_tunnel(self.directories.get(box_id, self.run_dir))

    async def _requested(self, box_id: str, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        self.requests.append((box_id, verb, params))
        if self.refusal is not None:
            raise self.refusal
        return {**self.answer, **params}

    @property
    def run_dir(self) -> Path:
        """The directory that a box sees at /run/box."""
        return self.root / "run"

    @property
    def guest_socket(self) -> Path:
        """The socket on which `box-guest` reaches the agent."""
        return self.root / "guest.sock"

    async def open(self) -> None:
        """Listen for the agent."""
        await self.registry.open(self.box_id, self.public)

    async def start(
        self, command: tuple[str, ...] | None = None, *, env: Mapping[str, str] | None = None
    ) -> None:
        """Start the agent."""
        places = ["--run-dir", self.run_dir, "--guest-socket", self.guest_socket]
        arguments = command or (sys.executable, "-m", "box_guest", *map(str, places))
        self.process = await asyncio.create_subprocess_exec(
            *arguments,
            *("--forward-dir", str(self.root / "forward")),
            *("--state-dir", str(self.root / "state")),
            stdin=asyncio.subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], **(env or {})},
        )

    def become(self, box_id: str, name: str) -> None:
        """Give the run directory the identity of another box, as a fork does."""
        private, self.public = new_identity()
        path = self.run_dir / protocol.AGENT_CONFIG
        config = {**json.loads(path.read_text()), "box_id": box_id, "name": name}
        path.write_text(json.dumps(config))
        (self.run_dir / protocol.HOST_KEY).write_bytes(private)
        self.box_id = box_id

    async def tunnel(self) -> Tunnel:
        """Return the tunnel of the agent."""
        return await self.registry.get(self.box_id)

    async def run(
        self,
        command: str | None,
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        terminal: Terminal | None = None,
    ) -> Finished:
        """Run a command to its end."""
        running = await (await self.tunnel()).start(command, env=env, terminal=terminal)
        if stdin is not None:
            await running.write(stdin)
        running.write_eof()
        streams: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        async for stream, data in running.output():
            streams[stream].append(data)
        status = await running.wait()
        return Finished(b"".join(streams["stdout"]), b"".join(streams["stderr"]), status)

    async def stop(self) -> None:
        """Stop the agent and the registry."""
        if self.process is not None:
            kill(self.process, signal.SIGTERM)
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        await self.registry.close_all()


@asynccontextmanager
async def local_agent() -> AsyncIterator[LocalBox]:
    """Yield a box whose listener is open and whose agent has not started."""
    # The paths of pytest's own directories are too long for a socket.
    with TemporaryDirectory(prefix="box-") as name:
        root = Path(name)
        (root / "run").mkdir()
        private, public = new_identity()
        daemon_private, daemon_public = new_identity()
        (root / "daemon_key").write_bytes(daemon_private)
        (root / "run" / protocol.HOST_KEY).write_bytes(private)
        config = {
            "box_id": BOX_ID,
            "name": "web",
            "hostname": "web",
            "daemon_key": daemon_public,
            "env": {"FROM_IMAGE": "yes"},
        }
        (root / "run" / protocol.AGENT_CONFIG).write_text(json.dumps(config))
        box = LocalBox(root, public)
        try:
            await box.open()
            yield box
        finally:
            await box.stop()


@pytest.fixture
async def local_box() -> AsyncIterator[LocalBox]:
    """Yield a box whose agent runs and has sent its hello."""
    async with local_agent() as box:
        await box.start()
        await box.tunnel()
        yield box
