"""Fixture `front_door`: the real front door for boxes that are plain local processes.

Everything between the SSH client and the agent is real: front door, operations, lifecycle, tunnel
registry and the guest agent's program. Only the backend differs. A box has no root filesystem or
namespaces of its own, so commands run on this machine.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest_asyncio

from box_guest import protocol
from boxd.backends.docker.without_memory import WithoutMemory
from boxd.backends.interface import BackendBox, BoxPlan, BoxStats, Capabilities, InitState
from boxd.backends.run_directories import RunDirectories
from boxd.boxes.lifecycle.assembly import Assembly, Places
from boxd.boxes.lifecycle.lifecycle import Lifecycle, LifecycleOptions
from boxd.boxes.limits.access_policy import AccessPolicy
from boxd.boxes.limits.account_keys import AccountKeys
from boxd.boxes.limits.admission import Limits
from boxd.boxes.limits.tier_limits import load_tiers
from boxd.boxes.limits.tiers import Tiers
from boxd.clock import SystemClock
from boxd.config import Address
from boxd.errors import Unavailable, UnknownImage, Unsupported
from boxd.mcp.service import McpService
from boxd.model.catalog import Flavor, Image
from boxd.operations import Dependencies, Operations
from boxd.ssh.cli.registry import build_console
from boxd.ssh.connection.listener import SshListener
from boxd.ssh.connection.listener_state import ListenerSettings
from boxd.tunnel.registry import TunnelRegistry, new_identity
from boxd.workspaces.seal import Sealer
from tests.doubles.control_store import MemoryStore
from tests.harness.mounts.drive import until
from tests.harness.ssh.openssh import Client, kill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from boxd.operations.shared.drives import Drives

STOP_S = 10.0
PR_SET_CHILD_SUBREAPER = 36
AS_INIT = (
    "import ctypes, os, sys;"
    f"ctypes.CDLL(None).prctl({PR_SET_CHILD_SUBREAPER}, 1, 0, 0, 0);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Gives orphans of a box to its agent, as in a box whose init is the agent."""

_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP, psutil.STATUS_ZOMBIE)
"""States of a stopped process. It has the second while it waits for a child's start (vfork)."""


class ProcessBackend(WithoutMemory):
    """Boxes whose init is the agent, as a child process of the test."""

    name = "process"
    why_no_memory = "boxes are plain processes"

    def __init__(self, root: Path) -> None:
        self._root = root
        self.near = False
        """Whether ports are reached through the box's network instead of its tunnel."""
        self._plans: dict[str, BoxPlan] = {}
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.killed: dict[str, int] = {}
        """The answer of `oom_kills`, by box id."""

    async def setup(self) -> None:
        """Do nothing: there is nothing to prepare."""

    async def close(self) -> None:
        """End all boxes, so that a test leaves none."""
        for box_id in list(self._running):
            await self.stop(box_id)

    def capabilities(self) -> Capabilities:
        """Report that a plain process cannot be suspended or forked."""
        return Capabilities(
            suspend=False,
            fork=False,
            snapshot=False,
            disk_limit=False,
            any_image=False,
            why_no_suspend=self.why_no_memory,
        )

    async def require_kind(self, runtime: str, *, containers: bool) -> None:
        """Do nothing: these boxes are plain processes."""

    async def expect(self, roots: Mapping[str, Path], first: str) -> None:
        """Do nothing: there are no images."""

    async def create(self, plan: BoxPlan) -> None:
        """Record the plan."""
        self._plans[plan.box_id] = plan

    async def start(self, box_id: str) -> None:
        """Start the agent."""
        places = self._root / box_id[:8]
        places.mkdir(exist_ok=True)
        plan = self._plans[box_id]
        _leave_out_bashrc(plan.run_dir / protocol.AGENT_CONFIG)
        command = [sys.executable, "-I", "-S", "-c", AS_INIT]
        command += [sys.executable, "-m", "box_guest", "--run-dir", str(plan.run_dir)]
        command += ["--guest-socket", str(places / "guest.sock")]
        command += ["--forward-dir", str(places / "forward")]
        command += ["--state-dir", str(places / "state")]
        self._running[box_id] = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, cwd="/"
        )

    async def init_state(self, box_id: str) -> InitState:
        """Report no loss: tests stop agents on purpose."""
        del box_id
        return InitState()

    async def suspect_inits(self, box_ids: Collection[str]) -> set[str]:
        """Suspect no init, for the same reason."""
        del box_ids
        return set()

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Do nothing: there is no mount namespace for the drive."""
        raise Unsupported("boxes that are plain processes have no drive")

    async def detach_drive(self, box_id: str) -> None:
        """Do nothing: there is no drive."""

    async def stop(self, box_id: str) -> None:
        """End the agent, which ends its commands."""
        process = self._running.pop(box_id, None)
        if process is None:
            return
        kill(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            kill(process)
            await process.wait()
            raise Unavailable(f"the agent of {box_id} did not end in {STOP_S} s") from None

    async def destroy(self, box_id: str) -> None:
        """End the box and remove its record."""
        await self.stop(box_id)
        self._plans.pop(box_id, None)

    async def list(self) -> list[BackendBox]:
        """Return the boxes that were created and not destroyed."""
        return [BackendBox(box_id, self._alive(box_id)) for box_id in self._plans]

    async def tcp_socket(self, box_id: str, family: int) -> socket.socket | None:
        """Return a socket of this machine's network, if the test wants this way."""
        if not self.near:
            return None
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.IPPROTO_TCP)

    async def oom_kills(self, box_id: str) -> int:
        """Return the test's value in `killed`."""
        return self.killed.get(box_id, 0)

    async def stats(self, box_id: str) -> BoxStats:
        """Return the use of the agent only."""
        return BoxStats(0.0, 0, 0, pids=int(self._alive(box_id)))

    def pid(self, box_id: str) -> int:
        """Return the pid of the agent."""
        return self._running[box_id].pid

    def guest_socket(self, box_id: str) -> Path:
        """Return the path on which programs in the box reach the agent."""
        return self._root / box_id[:8] / "guest.sock"

    def kill(self, box_id: str) -> None:
        """Kill the box and all its processes without a message."""
        agent = psutil.Process(self._running[box_id].pid)
        agent.suspend()
        # A stopped agent starts nothing. A program that it was starting is now its child.
        until(lambda: agent.status() in _STILL)
        for process in (*agent.children(recursive=True), agent):
            with suppress(psutil.NoSuchProcess):  # The end of the agent ends its input.
                process.kill()

    def _alive(self, box_id: str) -> bool:
        process = self._running.get(box_id)
        return process is not None and process.returncode is None


def _leave_out_bashrc(config: Path) -> None:
    """Keep bash from reading `~/.bashrc` for SSH commands.

    It is the file of the person who runs the tests. Bash does not read it below another shell.
    """
    told = json.loads(config.read_text())
    config.write_text(json.dumps({**told, "env": {**told["env"], "SHLVL": "1"}}))


class PlainCatalog:
    """One image, which is this machine, and two flavors."""

    default_flavor = Flavor("small", "for tests", 1.0, 512)

    def __init__(self, root: Path) -> None:
        self._root = root

    def images(self) -> list[Image]:
        """Return the only image."""
        return [Image("debian", "this machine")]

    def flavors(self) -> list[Flavor]:
        """Return two sizes."""
        return [self.default_flavor, Flavor("large", "for tests, too", 2.0, 2048)]

    def rootfs(self, name: str) -> Path:
        """Return the root of the only image. Raises UnknownImage for others."""
        if name != "debian":
            raise UnknownImage(f"there is no image {name!r}; the catalog has debian")
        return self._root


@dataclass
class Entrance:
    """An open front door and the parts behind it."""

    door: SshListener
    operations: Operations
    lifecycle: Lifecycle
    backend: ProcessBackend
    store: MemoryStore
    tiers: Tiers
    client: Client
    access_policy: AccessPolicy
    administrators: set[str]
    """Owners whose keys open the console of administrators."""

    def new_client(self, name: str) -> Client:
        """Return a client with its own key: another owner."""
        return Client(self.client.directory.parent / name, self.door.port, self.door.host_key)


def make_keys(root: Path) -> Path:
    """Create a directory of keys that contains the directory of tunnel keys."""
    keys = root / "keys"
    keys.mkdir(mode=0o700)
    private_key, _ = new_identity()
    (keys / "tunnel_ed25519").write_bytes(private_key)
    (keys / "tunnel_ed25519").chmod(0o600)
    return keys


def assembled(
    root: Path, tunnels: TunnelRegistry, backend: ProcessBackend, catalog: PlainCatalog
) -> Assembly:
    """Return the parts of boxes that are plain processes."""
    return Assembly(
        backend=backend,
        tunnels=tunnels,
        new_identity=new_identity,
        drives=None,
        catalog=catalog,
        places=Places(RunDirectories(root / "boxes"), root, tunnels.public_key),
    )


def composed(
    store: MemoryStore,
    lifecycle: Lifecycle,
    catalog: PlainCatalog,
    tiers: Tiers,
    access_policy: AccessPolicy,
    keys: Path,
    *,
    drives: Drives | None = None,
) -> Operations:
    """Return the operations over these parts, on the clock of the system."""
    return Operations.compose(
        Dependencies(
            store=store,
            lifecycle=lifecycle,
            catalog=catalog,
            drives=drives,
            tier_of=tiers.of,
            tiers=tiers,
            access_policy=access_policy,
            account_keys=AccountKeys(store),
            clock=SystemClock(),
            sealer=Sealer(keys / "master.key"),
        )
    )


@asynccontextmanager
async def open_entrance(root: Path) -> AsyncIterator[Entrance]:
    """Run the front door below `root` within the context; all its processes end with it."""
    keys = make_keys(root)

    async def asked(box_id: str, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        """Pass the requests of agents to the operations, which exist when a box runs."""
        if verb in protocol.ASKS:
            return await operations.asks.request_of_box(box_id, verb, params)
        raise Unavailable(f"box {box_id} asked for {verb}, which there is not here")

    tunnels = TunnelRegistry(keys / "tunnel_ed25519", RunDirectories(root / "boxes").bind, asked)
    backend, store, clock = ProcessBackend(root), MemoryStore(), SystemClock()
    catalog = PlainCatalog(root)
    administrators: set[str] = set()
    tiers, access_policy = Tiers(store, load_tiers()), AccessPolicy(store, clock, administrators)
    assembly = assembled(root, tunnels, backend, catalog)
    lifecycle = Lifecycle(
        store=store,
        assembly=assembly,
        catalog=catalog,
        clock=clock,
        limits=Limits(tier_of=tiers.of),
        options=LifecycleOptions(default_image="debian", automount=False),
    )
    operations = composed(store, lifecycle, catalog, tiers, access_policy, keys)
    await lifecycle.start()
    await lifecycle.agents.close()  # Tests stop and end agents on purpose.
    mcp = McpService(operations)
    door = SshListener(
        operations,
        ListenerSettings(
            Address("127.0.0.1", 0),
            keys,
            console=build_console(mcp.serve_lines),
            administrators=administrators,
        ),
    )
    try:
        await door.start()
        client = Client(root / "client", door.port, door.host_key)
        yield Entrance(
            door,
            operations,
            lifecycle,
            backend,
            store,
            tiers,
            client,
            access_policy,
            administrators,
        )
    finally:
        await door.close(drain_s=0)
        await mcp.close()
        await lifecycle.close(stop_boxes=True)
        await operations.close()
        await backend.close()


@pytest_asyncio.fixture
async def front_door() -> AsyncIterator[Entrance]:
    """Yield an open front door.

    Its directory has a short name, because paths of Unix sockets hold at most 107 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="door-") as name:
        async with open_entrance(Path(name)) as entrance:
            yield entrance
