"""The files of the product that three requests pass on their way from an interface to the backend.

`python -m tests.harness.documents.request_paths` prints them as `docs/internals/request-paths.md`
shows them, and `--write` writes them there. The service runs in this process: real interfaces
on loopback, real operations and lifecycle, stores in memory, and the fake backend.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import asyncssh
import httpx

from boxd.config import Address, Config
from boxd.http.app import Api
from boxd.http.server.serve import ApiServer
from boxd.mcp.service import McpService
from boxd.ssh.cli.registry import build_console
from boxd.ssh.connection.listener import SshListener
from boxd.ssh.connection.listener_state import ListenerSettings
from tests.checks.source import PACKAGES, ROOT
from tests.harness.simulation.world import ALICE, SteppedBackend, World
from tests.harness.ssh.frontdoor import make_keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Generator
    from contextvars import Context
    from types import CodeType, FrameType

T = TypeVar("T")

PAGE = ROOT / "docs/internals/request-paths.md"
BEGIN, END = "<!-- measured: begin -->\n\n", "\n<!-- measured: end -->\n"
SSH, EXEC = "ssh dev@host CMD", "POST /v1/exec/dev"
SUSPEND = "ssh cli@host suspend web"
QUIET_S, QUIET_TIMEOUT_S = 0.1, 60.0
"""A request begins after a time in which the service has nothing to do."""
_TOPS = {f"{ROOT / folder}/": package for package, folder in PACKAGES.items()}


def module_of(path: str) -> str | None:
    """Return the module of a file of the product, as the page names it; None: another file."""
    for top, package in _TOPS.items():
        if path.startswith(top):
            name = path.removeprefix(top).removesuffix(".py").replace("/", ".")
            return name if package == "boxd" else f"{package}.{name}"
    return None


@dataclass(frozen=True, slots=True)
class Earlier:
    """Counts of a request at the revision before the folders became layers.

    `chain` and `entered` are traces, without the test doubles that the product then contained.
    `count` is an earlier count that has no trace.
    """

    chain: int
    entered: int
    count: int


EARLIER = {SSH: Earlier(10, 50, 30), EXEC: Earlier(10, 48, 25), SUSPEND: Earlier(10, 43, 36)}


@dataclass(frozen=True, slots=True)
class RequestPath:
    """The modules of one request, in the order in which it enters them.

    `chain` are those whose functions wait for the backend call, or started a task that does.
    """

    title: str
    call: str
    chain: list[str]
    entered: list[str]


class Tracer:
    """Records the functions that a thread enters until it enters `last`.

    Tasks that exist already do not belong to the request: timers, for example.
    """

    def __init__(self, last: CodeType) -> None:
        self._last = last
        self._others = asyncio.all_tasks()
        self._starts: dict[asyncio.Task[Any], list[str]] = {}
        """The call chain that started each task."""
        self.entered: dict[str, None] = {}
        self.chain: list[str] | None = None

    def enter(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take an event of `sys.setprofile`."""
        if event != "call" or self.chain is not None:
            return
        if frame.f_code is self._last:
            self.chain = list(dict.fromkeys(reversed(self._callers(frame))))
        module = module_of(frame.f_code.co_filename)
        if module is not None and frame.f_code.co_name != "<module>" and self._is_part():
            self.entered[module] = None

    def start_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, T] | Generator[Any, None, T],
        /,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Start a task as the loop does; note the call chain that starts it."""
        task = asyncio.Task(work, loop=loop, context=context)
        self._starts[task] = self._callers(sys._getframe(1))
        return task

    def _callers(self, frame: FrameType | None) -> list[str]:
        """Return the modules on the stack, innermost first, and on the stacks that started
        tasks."""
        modules = []
        while frame is not None:
            module = module_of(frame.f_code.co_filename)
            if module is not None:
                modules.append(module)
            frame = frame.f_back
        task = _current_task()
        return modules if task is None else modules + self._starts.get(task, [])

    def _is_part(self) -> bool:
        return _current_task() not in self._others


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None


class Interfaces:
    """A core on fakes behind its SSH and HTTP interfaces."""

    def __init__(self, world: World, ssh_port: int, url: str, token: str) -> None:
        self.world = world
        self._ssh_port = ssh_port
        self._url = url
        self._token = token
        self._key = asyncssh.generate_private_key("ssh-ed25519")

    async def ssh(self, user: str, command: str) -> None:
        """Run `ssh USER@HOST COMMAND`, whose outcome does not matter."""
        async with asyncssh.connect(
            "127.0.0.1",
            self._ssh_port,
            username=user,
            client_keys=[self._key],
            known_hosts=None,
            config=None,
            agent_path=None,
        ) as connection:
            await connection.run(command)

    async def exec(self, spec: str, command: str) -> None:
        """Send `POST /v1/exec/SPEC`, whose outcome does not matter."""
        headers = {"authorization": f"Bearer {self._token}", "content-type": "text/plain"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=60) as client:
            with suppress(httpx.HTTPError):
                await client.post(f"/v1/exec/{spec}", content=command)


@asynccontextmanager
async def open_interfaces(root: Path) -> AsyncIterator[Interfaces]:
    """Start a core on fakes with its interfaces below `root`."""
    world = World(root, suspends=True)
    await world.start()
    mcp = McpService(world.operations)
    config = Config(state_dir=root, api_addr=Address("127.0.0.1", 0))
    api = ApiServer(Api(world.operations, config, mcp), config)
    settings = ListenerSettings(
        Address("127.0.0.1", 0), make_keys(root), console=build_console(mcp.serve_lines)
    )
    listener = SshListener(world.operations, settings)
    try:
        await listener.start()
        url = f"http://{await api.start()}"
        _, secret = await world.operations.keys.create_key(ALICE, "key", scope=None, ttl=None)
        yield Interfaces(world, listener.port, url, secret.reveal())
    finally:
        await listener.close(drain_s=0)
        await api.close()
        await mcp.close()
        await world.close()


async def measure() -> list[RequestPath]:
    """Trace the three requests, each on a new connection."""
    with tempfile.TemporaryDirectory(prefix="paths-") as name:
        async with open_interfaces(Path(name)) as interfaces:
            start, save = SteppedBackend.start.__code__, SteppedBackend.save_memory.__code__
            await interfaces.ssh("cli", "up web")
            interfaces.world.fail_at("backend.start")  # no agent answers behind the fakes
            interfaces.world.fail_at("backend.save_memory")
            return [
                await _traced(interfaces, SSH, "start", start, interfaces.ssh("dev", "id")),
                await _traced(interfaces, EXEC, "start", start, interfaces.exec("dev", "id")),
                await _traced(
                    interfaces,
                    SUSPEND,
                    "save_memory",
                    save,
                    interfaces.ssh("cli", "suspend web"),
                ),
            ]


async def _traced(
    interfaces: Interfaces,
    title: str,
    call: str,
    last: CodeType,
    request: Coroutine[Any, Any, None],
) -> RequestPath:
    await interfaces.world.quiet()
    async with asyncio.timeout(QUIET_TIMEOUT_S):
        while await _trace(Tracer(last), asyncio.sleep(QUIET_S)):
            pass
    tracer = Tracer(last)
    await _trace(tracer, request)
    if tracer.chain is None:
        raise AssertionError(f"{title} did not reach {call} of the backend")
    return RequestPath(title, call, tracer.chain, list(tracer.entered))


async def _trace(tracer: Tracer, work: Coroutine[Any, Any, None]) -> bool:
    """Trace some work; return whether the service did anything meanwhile."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(tracer.start_task)
    sys.setprofile(tracer.enter)
    try:
        await work
    finally:
        sys.setprofile(None)
        loop.set_task_factory(None)
    return bool(tracer.entered)


def section(paths: list[RequestPath]) -> str:
    """Return the measured part of the page."""
    titles = "Request | Backend call | Call chain: before | now | All files: before | now"
    lines = [f"| {titles} | Earlier count |", "|---|---|---|---|---|---|---|"]
    for path in paths:
        before = EARLIER[path.title]
        cells = [f"`{path.title}`", f"`{path.call}`", before.chain, len(path.chain)]
        cells += [before.entered, len(path.entered), before.count]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    chains = _spread([len(path.chain) - EARLIER[path.title].chain for path in paths])
    entered = _spread([len(path.entered) - EARLIER[path.title].entered for path in paths])
    lines += [
        "",
        f"Compared with before, a call chain has {chains}, and a request enters {entered}.",
    ]
    for path in paths:
        lines += [
            "",
            f"### Files of `{path.title}`",
            "",
            "Call chain, in the order of the calls:",
            "",
        ]
        lines += [f"{place}. `{module}`" for place, module in enumerate(path.chain, 1)]
        lines += ["", "All files:", "", "| Folder | Files |", "|---|---|"]
        folders: dict[str, list[str]] = {}
        for module in path.entered:
            folder, _, name = module.rpartition(".")
            folders.setdefault(folder or "boxd", []).append(name)
        for folder, names in sorted(folders.items()):
            lines.append(f"| `{folder}` ({len(names)}) | {', '.join(sorted(names))} |")
    return "\n".join(lines) + "\n"


def _spread(changes: list[int]) -> str:
    """Return how many files more, as one number or as a range."""
    low, high = min(changes), max(changes)
    count = str(low) if low == high else f"{low} to {high}"
    return f"{count} {'file' if count == '1' else 'files'} more"


def measured_part(page: str) -> str:
    """Return the text between the marks of the page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Print the measured part, or write it into the page."""
    text = section(asyncio.run(measure()))
    if "--write" in sys.argv:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
