"""`boxd` with steps and a clock that a test controls.

Its command line is `python -m tests.harness.service.mortal_main DIR ...`.

The lifecycle's calls to store, backend, tunnels and drives pass through
`tests.harness.service.mortal`. The process ends itself with SIGKILL at the step that `DIR/end-at`
names, and `DIR/steps` records every step. `DIR/wall` and `DIR/elapsed` have the seconds that the
clocks are ahead. `DIR/boot` has the host's boot id. A missing file changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from rich.console import Console

from boxd import service
from boxd.boxes.lifecycle.assembly import Assembly
from boxd.cli import serving
from boxd.cli.main import main
from boxd.clock import SystemClock
from boxd.embedded.statedir import hold_lock, make_private
from boxd.operator_files import OperatorFiles
from boxd.privileged.local import LocalHost
from boxd.store.postgres.store import PostgresStore
from tests.harness.service.mortal import Life, mortal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from datetime import datetime

    from boxd.backends.interface import Backend
    from boxd.boxes.lifecycle.assembly import Places
    from boxd.boxes.state.interface import Catalog, DriveAttacher, Tunnels
    from boxd.cli.printing import Steps
    from boxd.config import Config
    from boxd.observation import Observer


def told(file: Path) -> str:
    """Return the content of a file, or "" if it does not exist."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


class CommandedLife(Life):
    """Ends the process at the step that a file names."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._steps = (directory / "steps").open("a", buffering=1)

    def step(self, name: str) -> None:
        """Record a step with its time; return unless the process ends here."""
        self._steps.write(f"{CommandedClock(self._directory).now().timestamp()} {name}\n")
        if told(self._directory / "end-at") == name:
            os.kill(os.getpid(), signal.SIGKILL)


class CommandedClock(SystemClock):
    """The machine's clocks plus the offsets in files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def now(self) -> datetime:
        """Return wall time, UTC."""
        return super().now() + timedelta(seconds=float(told(self._directory / "wall") or 0))

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return super().monotonic() + float(told(self._directory / "elapsed") or 0)

    def boot_id(self) -> str:
        """Return the machine's present boot id."""
        return told(self._directory / "boot") or super().boot_id()


def command(directory: Path) -> None:
    """Control a service of this process from a directory."""
    life = CommandedLife(directory)

    def assembly(
        *,
        backend: Backend,
        tunnels: Tunnels,
        drives: DriveAttacher | None,
        catalog: Catalog,
        places: Places,
        new_identity: Callable[[], tuple[bytes, str]],
    ) -> Assembly:
        return Assembly(
            backend=mortal(backend, life, "backend"),
            tunnels=mortal(tunnels, life, "tunnel"),
            drives=mortal(drives, life, "drive"),
            catalog=catalog,
            places=places,
            new_identity=new_identity,
        )

    def store(dsn: str, *, observer: Observer) -> PostgresStore:
        return mortal(PostgresStore(dsn, observer=observer), life, "store")

    vars(service).update(
        Assembly=assembly, PostgresStore=store, SystemClock=lambda: CommandedClock(directory)
    )


def serve(config: Config, arguments: argparse.Namespace) -> int:
    """Serve as one process with all rights, so that it dies as a whole. Returns 0."""
    del arguments
    make_private(config.state_dir)
    lock = hold_lock(config.state_dir)
    files = OperatorFiles.read(config)

    def made(progress: Steps) -> service.Service:
        host = LocalHost(config, progress, serve=True)
        return service.Service(config, files, host, progress)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving.serve_until_stopped(made, lambda: None, Console(stderr=True)))
    os.close(lock)
    return 0


if __name__ == "__main__":
    command(Path(sys.argv[1]))
    vars(serving)["serve"] = serve
    sys.exit(main(sys.argv[2:]))
