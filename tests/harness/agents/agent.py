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
from boxd.tunnel.registry import TunnelRegistry, new_identity
from tests.harness.ssh.openssh import kill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from boxd.errors import BoxdError
    from boxd.tunnel.channel import ExitStatus, Terminal, Tunnel

BOX_ID = "b0" * 16
STOP_S = 20.0


@dataclass
class Finished:
    """A command's whole output and end."""

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
    """What requests are answered with, in place of `answer`."""
    answer: dict[str, Any] = field(default_factory=lambda: {"path": "/wrk"})
    shells: list[int] = field(default_factory=list)
    """What the agent told of detached shells."""
    misbehaviour: list[str] = field(default_factory=list)
    box_id: str = BOX_ID
    process: asyncio.subprocess.Process | None = None

    def __post_init__(self) -> None:
        self.registry = TunnelRegistry(
            self.root / "daemon_key",
            self._requested,
            lambda _, shells: self.shells.append(shells),
            lambda _, text: self.misbehaviour.append(text),
        )

    async def _requested(self, box_id: str, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        self.requests.append((box_id, verb, params))
        if self.refusal is not None:
            raise self.refusal
        return {**self.answer, **params}

    @property
    def run_dir(self) -> Path:
        """What a box sees at /run/box."""
        return self.root / "run"

    @property
    def guest_socket(self) -> Path:
        """Where `box-guest` talks to the agent."""
        return self.root / "guest.sock"

    async def open(self) -> None:
        """Listens for the agent."""
        await self.registry.open(self.box_id, self.run_dir, self.public)

    async def start(
        self, command: tuple[str, ...] | None = None, *, env: Mapping[str, str] | None = None
    ) -> None:
        """Starts the agent."""
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
        """The run directory tells of another box from now on, as after a fork."""
        private, self.public = new_identity()
        path = self.run_dir / protocol.AGENT_CONFIG
        config = {**json.loads(path.read_text()), "box_id": box_id, "name": name}
        path.write_text(json.dumps(config))
        (self.run_dir / protocol.HOST_KEY).write_bytes(private)
        self.box_id = box_id

    async def tunnel(self) -> Tunnel:
        """Its tunnel."""
        return await self.registry.get(self.box_id)

    async def run(
        self,
        command: str | None,
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        terminal: Terminal | None = None,
    ) -> Finished:
        """Runs a command to its end."""
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
        """Ends agent and registry."""
        if self.process is not None:
            kill(self.process, signal.SIGTERM)
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        await self.registry.close_all()


@asynccontextmanager
async def local_agent() -> AsyncIterator[LocalBox]:
    """A box whose listener is open and whose agent is not started."""
    # pytest's own directories are longer than a socket's path may be.
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
    """A box whose agent runs and has said hello."""
    async with local_agent() as box:
        await box.start()
        await box.tunnel()
        yield box
