"""The commands `boxd serve` and `boxd down`."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from boxd import log
from boxd.cli import hangup
from boxd.cli.printing import Steps, refused, report, say, showing
from boxd.errors import Unavailable

if TYPE_CHECKING:
    import argparse
    import asyncio
    import socket
    from collections.abc import Callable, Coroutine

    from rich.console import Console

    from boxd.config import Config
    from boxd.service import Bound, Service, StopMode

_log = logging.getLogger(__name__)
T = TypeVar("T")
STOPPED = "Stopped."
LAST_LINES = {
    "everything": STOPPED,
    "daemon": "boxd stopped; boxes keep running, and the next start takes them over",
}
"""The last line of output for each `StopMode`."""
MAX_OPEN_FILES = 65_536
"""Maximum number of files that the daemon may have open at once, if the system allows that many."""


class Beats:
    """Signs of life of a front: bytes that it writes to a descriptor."""

    def __init__(self, descriptor: int, interval_s: float | None) -> None:
        """Take the descriptor, and the seconds between two bytes; None: there is one byte only."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._interval_s = interval_s

    def start(self) -> None:
        """Write the first byte, and let the running event loop write the others."""
        import asyncio

        with suppress(BlockingIOError):  # nobody reads, so another byte says nothing more
            os.write(self._descriptor, b"1")
        if self._interval_s is not None:
            asyncio.get_running_loop().call_later(self._interval_s, self.start)


def serve(config: Config, arguments: argparse.Namespace) -> int:
    """Run the service until a signal stops it. Return the exit status. Raises BoxdError."""
    from boxd import doctor
    from boxd.embedded.statedir import hold_lock, make_private
    from boxd.sandbox import capabilities
    from boxd.service import Bound

    del arguments
    capabilities.drop()
    missing = [
        check for check in doctor.checks(config, starting=True) if check.needed and not check.ok
    ]
    for check in missing:
        report(f"{check.name}: {check.finding}\n  remedy: {check.remedy}")
    if missing:
        return 1
    _allow_files()
    _share_queues()
    make_private(config.state_dir)
    lock = hold_lock(config.state_dir)
    return _supervise(config, lock, Bound.of(config), serve=True)


def _supervise(config: Config, lock: int, bound: Bound, *, serve: bool) -> int:
    """Run the processes of the service until a signal stops them; return the exit status.

    The first process and the helper hold `lock` until they end. `serve` false: the front only stops
    everything that an earlier service left running.
    """
    from boxd.privileged import helper
    from boxd.privileged.service_manager import ServiceManager
    from boxd.privileged.supervision import Supervision

    manager = ServiceManager.take()

    def run_helper(control: socket.socket) -> int:
        bound.close()
        return refused(lambda: _run(helper.serve(config, control, serve=serve)))

    def run_front(channel: socket.socket, ready: int) -> int:
        os.close(lock)
        beats = Beats(ready, manager.beat_s)
        return refused(lambda: _front(config, bound, channel, beats, serve=serve))

    gc.freeze()  # the processes share the memory of the objects that exist now
    return Supervision(run_helper, run_front, hangup.translator(), manager).run()


def _front(
    config: Config, bound: Bound, channel: socket.socket, beats: Beats, *, serve: bool
) -> int:
    """Run a front; return its exit status. Raises BoxdError."""
    import asyncio

    from rich.console import Console

    from boxd.operator_files import OperatorFiles
    from boxd.privileged import front
    from boxd.service import Service

    front.let_go_of_terminal()
    console = Console(stderr=True)
    files = OperatorFiles.read(config, serve=serve)
    try:
        with showing(console) as progress:
            connection = _run(front.start_servers(channel, progress))
    except asyncio.CancelledError:
        say(console, STOPPED)
        return 0
    front.enter_sandbox(config, connection)

    def service(progress: Steps) -> Service:
        host = front.connect(config, connection, progress)
        return Service(config, files, host, progress, bound)

    if serve:
        _run(serve_until_stopped(service, beats.start, console))
    else:
        _run(_stop_left(service, console))
    return 0


def _run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the service's event loop; return its result."""
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _allow_files() -> None:
    """Raise the limit on open files. Each connection is an open file.

    The limits for unknown clients must apply before the process runs out of files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _share_queues() -> None:
    """Let boxes queue at most three quarters of the signals and messages that root may queue.

    The kernel counts those of all boxes for root of the host as well, because root creates their
    user namespaces. The limits of the creator at that time hold for all boxes together. Other
    programs of root keep the rest.
    """
    for kind in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
        soft, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            resource.setrlimit(kind, (min(soft, hard * 3 // 4), hard))


async def serve_until_stopped(
    make: Callable[[Steps], Service], on_ready: Callable[[], object], console: Console
) -> None:
    """Serve until a signal arrives.

    `make` creates the service. `on_ready` is called when users can connect.

    SIGINT stops everything. SIGTERM stops only the daemon; boxes and mounts keep running. SIGHUP
    reloads the settings files.
    """
    import asyncio

    from boxd.service import StopMode

    loop = asyncio.get_running_loop()
    stop_mode: asyncio.Future[StopMode] = loop.create_future()

    def stop(mode: StopMode) -> None:
        if not stop_mode.done():
            stop_mode.set_result(mode)
        else:
            say(console, "boxd: already stopping; this takes a few seconds")

    loop.add_signal_handler(signal.SIGINT, stop, StopMode.EVERYTHING)
    loop.add_signal_handler(signal.SIGTERM, stop, StopMode.DAEMON)
    progress = Steps(console)
    service = make(progress)
    with progress:
        loop.add_signal_handler(signal.SIGHUP, service.reread)
        starting = asyncio.create_task(service.start())
        waiting: set[asyncio.Future[Any]] = {starting, stop_mode}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            progress("Stopping: undoing the start")
            starting.cancel()
            await asyncio.wait({starting})
        if starting.cancelled():
            say(console, STOPPED)
            return
        await starting
    on_ready()
    if log.is_json():
        _log.info("boxd is serving", extra=service.addresses())
    else:
        for line in service.welcome():
            say(console, line)
    mode = await stop_mode
    with progress:
        progress("Stopping")
        await service.stop(mode)
    say(console, LAST_LINES[mode.value])


def down(config: Config, arguments: argparse.Namespace) -> int:
    """Stop the daemon and its boxes. Return the exit status. Raises BoxdError."""
    from rich.console import Console

    from boxd.doctor import left_running
    from boxd.embedded.statedir import hold_lock, lock_holder, make_private
    from boxd.sandbox import capabilities
    from boxd.service import UNBOUND

    del arguments
    if not config.state_dir.is_dir():
        raise Unavailable(f"there is no directory {config.state_dir}; give --state-dir DIR")
    console = Console(stderr=True)
    holder = lock_holder(config.state_dir)
    if holder is not None:
        with showing(console) as progress:
            _run(_stop_daemon(config, holder, progress))
        say(console, f"stopped process {holder}")
        return 0
    if not left_running(config):
        say(console, "nothing is running")
        return 0
    capabilities.drop()
    make_private(config.state_dir)
    return _supervise(config, hold_lock(config.state_dir), UNBOUND, serve=False)


async def _stop_left(make: Callable[[Steps], Service], console: Console) -> None:
    """Stop what a service that has died left running: start without listeners, stop everything."""
    from boxd.service import StopMode

    progress = Steps(console)
    service = make(progress)
    with progress:
        progress("Stopping the boxes and servers of an earlier boxd")
        await service.start(serve=False)
        await service.stop(StopMode.EVERYTHING)
    say(console, STOPPED)


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
