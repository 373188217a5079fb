"""`boxd serve` and `boxd down`."""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from boxd.cli import hangup
from boxd.cli.printing import say, showing
from boxd.errors import Unavailable

if TYPE_CHECKING:
    import argparse
    import asyncio
    from collections.abc import Callable

    from rich.console import Console

    from boxd.config import Config
    from boxd.service import StopMode

ENDS = {
    "everything": "Stopped.",
    "daemon": "boxd stopped; boxes go on running and are found again at the next start",
}
"""Last words by what was to be stopped."""
FILES = 65_536
"""Open at once, if the system lets us."""


def serve(config: Config, arguments: argparse.Namespace) -> int:
    """`boxd serve`. Raises BoxdError."""
    import asyncio

    import uvloop
    from rich.console import Console

    from boxd import doctor

    del arguments
    console = Console(stderr=True)
    missing = [
        check for check in doctor.checks(config, starting=True) if check.needed and not check.ok
    ]
    for check in missing:
        print(f"boxd: {check.name}: {check.found}\n  remedy: {check.remedy}", file=sys.stderr)
    if missing:
        return 1
    _allow_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_stopped(config, console))
    return 0


def _allow_files() -> None:
    """Every connection is a file. Limits must turn strangers away before files run out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve_until_stopped(config: Config, console: Console) -> None:
    """SIGINT: stop everything. SIGTERM, and SIGHUP of a closed terminal: boxes and mounts stay.

    Any other SIGHUP stops nothing, and has files of settings read anew.
    """
    import asyncio

    from boxd.service import Service, StopMode

    loop = asyncio.get_running_loop()
    asked: asyncio.Future[StopMode] = loop.create_future()

    def stop(mode: StopMode) -> None:
        if not asked.done():
            asked.set_result(mode)
        else:
            say(console, "boxd: stopping already; this takes a few seconds")

    loop.add_signal_handler(signal.SIGINT, stop, StopMode.EVERYTHING)
    loop.add_signal_handler(signal.SIGTERM, stop, StopMode.DAEMON)
    with showing(console) as progress:
        service = Service(config, progress)
        hang_up = hangup.handler(lambda: stop(StopMode.DAEMON), service.reread)
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        starting = asyncio.create_task(service.start())
        waiting: set[asyncio.Future[Any]] = {starting, asked}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            progress("Stopping: the start is taken back")
            starting.cancel()
            await asyncio.wait({starting})
        if starting.cancelled():
            say(console, "Stopped.")
            return
        await starting
    for line in service.welcome():
        say(console, line)
    mode = await asked
    with showing(console) as progress:
        progress("Stopping")
        await service.stop(mode)
    say(console, ENDS[mode.value])


def down(config: Config, arguments: argparse.Namespace) -> int:
    """`boxd down`. Raises BoxdError."""
    import asyncio

    import uvloop
    from rich.console import Console

    from boxd.doctor import left_running
    from boxd.embedded.statedir import lock_holder

    del arguments
    if not config.state_dir.is_dir():
        raise Unavailable(f"there is no directory {config.state_dir}; give --state-dir DIR")
    console = Console(stderr=True)
    if lock_holder(config.state_dir) is None and not left_running(config):
        say(console, "nothing is running")
        return 0
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_stop_everything(config, console))
    return 0


async def _stop_everything(config: Config, console: Console) -> None:
    """Asks a living daemon to stop; without one, starts just enough to stop what is left."""
    from boxd.embedded.statedir import lock_holder
    from boxd.service import Service, StopMode

    holder = lock_holder(config.state_dir)
    if holder is not None:
        with showing(console) as progress:
            await _stop_daemon(config, holder, progress)
        say(console, f"stopped process {holder}")
    else:
        with showing(console) as progress:
            progress("Stopping what an earlier boxd left")
            service = Service(config, progress)
            await service.start(serve=False)
            await service.stop(StopMode.EVERYTHING)
        say(console, "Stopped.")


async def _stop_daemon(config: Config, holder: str, progress: Callable[[str], None]) -> None:
    """Waits as long as the daemon works: each of its boxes takes a bounded time. Ctrl-C ends it."""
    import asyncio

    from boxd.doctor import boxes_left
    from boxd.embedded.statedir import lock_holder

    if not holder.isdigit():
        raise Unavailable(f"{config.state_dir} is served by an unknown process; stop that one")
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(int(holder), signal.SIGINT)
    told = ""
    while lock_holder(config.state_dir) == holder:
        text = f"Stopping process {holder}, boxes left: {boxes_left(config)}"
        if text != told:
            progress(text)
        told = text
        await asyncio.sleep(0.1)
