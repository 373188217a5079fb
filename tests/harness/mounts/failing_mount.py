"""The mount process with failpoints: `python -m tests.harness.mounts.failing_mount`.

The file `trap` beside the mountpoint has a point, an action and the affected calls. The action
`kill` sends SIGKILL to the process itself, `raise` raises a StorageError, and `bug` raises an
unexpected error. The next affected call that passes the point removes the file and runs the action.
`crashing.py` lists the points. While a file `hold` exists, no upload starts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvloop

from box_guest.mount import mountpoint as mounting
from box_guest.mount.__main__ import serve
from tests.harness.mounts.drive import MountProcess
from tests.harness.simulation.crashing import CHANGES, Guarded
from wrkfs.config import VolumeConfig
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import StorageError
from wrkfs.fs import Filesystem
from wrkfs.handle import FileHandle
from wrkfs.meta.postgres.store import PostgresMeta

if TYPE_CHECKING:
    from tests.harness.simulation.crashing import Method, Trip
    from wrkfs.data.interface import BlockStore
    from wrkfs.meta.interface.store import MetaStore


HOLD_PAUSE = 0.02
LONGEST_HOLD = 3000
"""Number of pauses after which an upload starts despite `hold`: one minute."""


class FailingMount(MountProcess):
    """A mount process with failpoints, and its trap."""

    PROGRAM = "tests.harness.mounts.failing_mount"

    @property
    def trap(self) -> Path:
        """Return the path of the trap, which exists until the trap springs."""
        return self.path.parent / "trap"

    def set(self, point: str, action: str, *calls: str) -> None:
        """Set a trap for the next of these calls that passes the point."""
        made = self.trap.with_suffix(".new")
        made.write_text(" ".join((point, action, *calls)))
        made.replace(self.trap)

    def wait_dead(self) -> None:
        """Wait until the process has ended itself."""
        self._reap()


@dataclass(frozen=True)
class FileTrap:
    """The trap of the file."""

    file: Path

    async def __call__(self, point: str, verb: str) -> None:
        """Check the trap when a call passes a point."""
        for _ in range(LONGEST_HOLD):
            if point != "before_upload" or not self.file.with_name("hold").exists():
                break
            await asyncio.sleep(HOLD_PAUSE)
        try:
            wanted, action, *calls = self.file.read_text().split(" ")
        except FileNotFoundError:
            return
        if point != wanted or verb.replace(" ", "_") not in calls:
            return
        self.file.unlink()
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "bug":
            raise RuntimeError(f"{point} of {verb}")
        raise StorageError(f"{point} of {verb}")


class Answering:
    """A Filesystem or one of its handles. Each call passes `before_ack` when it is done."""

    def __init__(self, inner: object, trip: Trip) -> None:
        self._inner = inner
        self._trip = trip

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        method = cast("Method", found)

        async def answering(*args: object, **named: object) -> object:
            answer = await method(*args, **named)
            await self._trip("before_ack", name)
            if isinstance(answer, FileHandle):
                return Answering(answer, self._trip)
            if isinstance(answer, tuple) and isinstance(answer[-1], FileHandle):
                return (*answer[:-1], Answering(answer[-1], self._trip))
            return answer

        return answering


async def main(config: VolumeConfig, directory: Path) -> None:
    """Serve like the mount process."""
    trip = FileTrap(directory.parent / "trap")
    meta = PostgresMeta(config)
    await meta.start()
    fs = Filesystem(
        cast("MetaStore", Guarded(meta, trip, CHANGES, "commit")),
        cast("BlockStore", Guarded(S3Blocks(config.store), trip, frozenset({"put"}), "upload")),
        prefix=config.store.prefix,
    )
    await serve(cast("Filesystem", Answering(fs, trip)), directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--credentials-fd", type=int)
    parser.add_argument("mountpoint", type=Path)
    arguments = parser.parse_args()
    with os.fdopen(arguments.credentials_fd, encoding="utf-8") as pipe:
        volume = VolumeConfig.from_json(pipe.read())
    place = mounting.prepare(arguments.mountpoint)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(volume, place))
    sys.exit(0)
