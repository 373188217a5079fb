"""The front door of `frontdoor` in a separate process, with its own memory and log.

`python -m tests.harness.ssh.door_process DIRECTORY` writes one line of JSON with port and host key.
It then writes one line with its use of resources for each line that it reads, and ends with its
input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import uvloop

from tests.harness.ssh.frontdoor import open_entrance
from tests.harness.ssh.openssh import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PAGE = resource.getpagesize()
START_S = 60.0
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Use:
    """The use of a process: resident bytes, processor seconds, open descriptors and tasks."""

    rss: int
    cpu_s: float
    descriptors: int
    tasks: int


@dataclass
class Door:
    """A front door in another process, and a client with access."""

    process: asyncio.subprocess.Process
    client: Client
    errors: Path
    """Its output on stderr: the log from WARNING on."""

    async def use(self) -> Use:
        """Return its present use, after it has released unused memory."""
        return Use(**await _ask(self.process))


@asynccontextmanager
async def door_process() -> AsyncIterator[Door]:
    """Run the front door within the context; its boxes end with it."""
    with TemporaryDirectory(prefix="door-") as name:
        root = Path(name)
        with (root / "errors").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.harness.ssh.door_process", name),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
            )
        try:
            opened = await _answer(process)
            client = Client(root / "user", opened["port"], opened["host_key"])
            yield Door(process, client, root / "errors")
        finally:
            assert process.stdin is not None
            process.stdin.close()
            async with asyncio.timeout(START_S):
                await process.wait()


async def _ask(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    return await _answer(process)


async def _answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(START_S):
        line = await process.stdout.readline()
    assert line, "the door ended"
    answer: dict[str, Any] = json.loads(line)
    return answer


def _used() -> dict[str, float]:
    gc.collect()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "tasks": len(asyncio.all_tasks()),
    }


async def _serve(root: Path) -> None:
    async with open_entrance(root) as entrance:
        print(
            json.dumps({"port": entrance.door.port, "host_key": entrance.door.host_key}), flush=True
        )
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        while await lines.readline():
            print(json.dumps(_used()), flush=True)


def main() -> None:
    """Serve the front door below the directory of the command line."""
    logging.basicConfig(level=logging.WARNING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
