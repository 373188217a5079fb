"""The commands `boxd serve` and `boxd down`."""

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

LAST_LINES = {
    "everything": "Stopped.",
    "daemon": "boxd stopped; boxes keep running, and the next start takes them over",
}
"""The last line of output for each `StopMode`."""
MAX_OPEN_FILES = 65_536
"""Maximum number of files that the daemon may have open at once, if the system allows that many."""


def serve(config: Config, arguments: argparse.Namespace) -> int:
    """Run the service until a signal stops it. Return the exit status. Raises BoxdError."""
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
        print(f"boxd: {check.name}: {check.finding}\n  remedy: {check.remedy}", file=sys.stderr)
    if missing:
        return 1
    _allow_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_stopped(config, console))
    return 0


def _allow_files() -> None:
    """Raise the limit on open files. Each connection is an open file.

    The limits for unknown clients must apply before the process runs out of files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def _serve_until_stopped(config: Config, console: Console) -> None:
    """Serve until a signal arrives.

    SIGINT stops everything. SIGTERM, and SIGHUP of a closed terminal, stop only the daemon; boxes
    and mounts keep running. Any other SIGHUP reloads the settings files.
    """
    import asyncio

    from boxd.service import Service, StopMode

    loop = asyncio.get_running_loop()
    stop_mode: asyncio.Future[StopMode] = loop.create_future()

    def stop(mode: StopMode) -> None:
        if not stop_mode.done():
            stop_mode.set_result(mode)
        else:
            say(console, "boxd: already stopping; this takes a few seconds")

    loop.add_signal_handler(signal.SIGINT, stop, StopMode.EVERYTHING)
    loop.add_signal_handler(signal.SIGTERM, stop, StopMode.DAEMON)
    with showing(console) as progress:
        service = Service(config, progress)
        hang_up = hangup.handler(lambda: stop(StopMode.DAEMON), service.reread)
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        starting = asyncio.create_task(service.start())
        waiting: set[asyncio.Future[Any]] = {starting, stop_mode}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            progress("Stopping: undoing the start")
            starting.cancel()
            await asyncio.wait({starting})
        if starting.cancelled():
            say(console, "Stopped.")
            return
        await starting
    for line in service.welcome():
        say(console, line)
    mode = await stop_mode
    with showing(console) as progress:
        progress("Stopping")
        await service.stop(mode)
    say(console, LAST_LINES[mode.value])


def down(config: Config, arguments: argparse.Namespace) -> int:
    """Stop the daemon and its boxes. Return the exit status. Raises BoxdError."""
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
    """Stop a running daemon, or clean up after one that has died.

    To clean up, a service starts without listeners and stops everything.
    """
    from boxd.embedded.statedir import lock_holder
    from boxd.service import Service, StopMode

    holder = lock_holder(config.state_dir)
    if holder is not None:
        with showing(console) as progress:
            await _stop_daemon(config, holder, progress)
        say(console, f"stopped process {holder}")
    else:
        with showing(console) as progress:
            progress("Stopping the boxes and servers of an earlier boxd")
            service = Service(config, progress)
            await service.start(serve=False)
            await service.stop(StopMode.EVERYTHING)
        say(console, "Stopped.")


async def _stop_daemon(config: Config, holder: str, progress: Callable[[str], None]) -> None:
    """Send SIGINT to the daemon and wait until it has stopped. Ctrl-C ends the wait.

    The wait has no deadline: each box stops in bounded time.
    """
    import asyncio

    from boxd.doctor import boxes_left
    from boxd.embedded.statedir import lock_holder

    if not holder.isdigit():
        raise Unavailable(f"an unknown process serves {config.state_dir}; stop that process")
    with suppress(ProcessLookupError):  # the daemon has just stopped
        os.kill(int(holder), signal.SIGINT)
    last_text = ""
    while lock_holder(config.state_dir) == holder:
        text = f"Stopping process {holder}, boxes left: {boxes_left(config)}"
        if text != last_text:
            progress(text)
        last_text = text
        await asyncio.sleep(0.1)
