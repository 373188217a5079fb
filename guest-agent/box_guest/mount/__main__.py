"""The mount process: serves one volume at one directory until SIGTERM.

`python -m box_guest.mount (--credentials-fd N | --credentials FILE) (MOUNTPOINT | --fuse-fd N)`.
Credentials come from an inherited pipe or from a file of mode 0600, never from an argument or the
environment. With `--fuse-fd` the caller has mounted and will unmount: this process only serves that
descriptor. It prints one line, `ready`, when the drive can be used. Exit status: 0 after SIGTERM or
umount, 1 for an error, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyfuse3
import uvloop

from box_guest.fuse.tuning import device, tune
from box_guest.mount import loop, status
from box_guest.mount import mountpoint as mounting
from box_guest.mount.kernel import Kernel, device_descriptor
from box_guest.mount.memory import collect_rarely
from box_guest.mount.operations import Operations
from wrkfs.config import ConfigError, Limits, VolumeConfig
from wrkfs.errors import Unavailable, WrkfsError
from wrkfs.fs import Filesystem
from wrkfs.upkeep import background
from wrkfs.upkeep.background import PACE, Pace

if TYPE_CHECKING:
    from collections.abc import Awaitable

log = logging.getLogger("box_guest.mount")

OPTIONS = frozenset(
    {"fsname=wrk", "subtype=wrkfs", "allow_other", "default_permissions", "nosuid", "nodev"}
)
"""Mount options."""
MAX_TASKS = 1024
"""Maximum number of concurrent requests; more wait in the kernel."""
INIT_TIMEOUT = 10.0
"""Seconds to wait for the kernel's first request."""
DRAIN_TIMEOUT = 8.0
"""Seconds for active requests to end after SIGTERM, and again for the last commits."""
MAX_CREDENTIALS = 64 * 1024
"""Maximum length of the credentials document, in characters."""
JOURNALS = Path("/var/lib/wrkfs/journal")
"""Default directory of journals."""
CACHE_SIZE = 4 << 30
"""Default size of the disk cache in bytes."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="box_guest.mount", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--credentials-fd", type=int, metavar="N")
    source.add_argument("--credentials", type=Path, metavar="FILE")
    option = parser.add_argument
    option("--cache-dir", type=Path, metavar="DIR", help="keep a disk cache of blocks below DIR")
    option(
        "--cache-size",
        type=int,
        default=CACHE_SIZE,
        metavar="BYTES",
        help="largest disk cache (default: 4 GiB)",
    )
    option("--status", type=Path, metavar="SOCKET", help="report the mount's health on this socket")
    option(
        "--upkeep",
        type=float,
        default=PACE.interval,
        metavar="S",
        help="seconds between upkeep rounds",
    )
    option(
        "--grace",
        type=float,
        default=PACE.grace.total_seconds(),
        metavar="S",
        help="seconds that garbage stays in the store; must exceed the longest read",
    )
    option(
        "--no-leases",
        dest="leases",
        action="store_false",
        help="query the database each time, and cache nothing that other hosts may change",
    )
    option(
        "--journal",
        type=Path,
        default=JOURNALS,
        metavar="DIR",
        help=f"keep the journal of answered changes below DIR (default: {JOURNALS})",
    )
    option(
        "--durable-close",
        action="store_true",
        help="make files durable when they are closed, and delay no change",
    )
    option(
        "--local-locks",
        action="store_true",
        help="let the kernel keep the locks of files, so that they exclude only this host",
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--fuse-fd", type=int, metavar="N", help="serve an existing mount")
    place.add_argument("mountpoint", type=Path, nargs="?")
    return parser


def main() -> int:
    """Parse the command line, mount and serve. Return the exit status."""
    arguments = _parser().parse_args()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        config = _credentials(arguments.credentials_fd, arguments.credentials)
        directory: Path | int = arguments.fuse_fd
        if arguments.mountpoint is not None:
            directory = mounting.prepare(arguments.mountpoint)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            limits = Limits(
                disk=arguments.cache_size,
                cache_dir=arguments.cache_dir,
                durable_close=arguments.durable_close,
            )
            pace = Pace(arguments.upkeep, timedelta(seconds=arguments.grace))
            fs = Filesystem.connect(
                config, limits=limits, leases=arguments.leases, journals=arguments.journal
            )
            Operations.enable_posix_locks &= not arguments.local_locks
            Operations.enable_flock &= not arguments.local_locks
            runner.run(_run(fs, directory, pace, arguments.status))
            return 0
    except (ConfigError, mounting.MountpointError, WrkfsError) as error:
        sys.stderr.write(f"box_guest.mount: {error}\n")
        return 1


def _credentials(descriptor: int | None, file: Path | None) -> VolumeConfig:
    if descriptor is None:
        if file is None:
            raise ConfigError("no credentials are given")
        return VolumeConfig.from_file(file)
    try:
        with os.fdopen(descriptor, encoding="utf-8") as pipe:
            return VolumeConfig.from_json(pipe.read(MAX_CREDENTIALS))
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"cannot read the credentials from descriptor {descriptor}") from None


async def _run(
    connecting: Awaitable[Filesystem], place: Path | int, pace: Pace, socket: Path | None
) -> None:
    fs = await connecting
    collect_rarely()
    background.start(fs, pace)
    async with status.serving(fs, socket):
        await serve(fs, place)


async def serve(fs: Filesystem, place: Path | int) -> None:
    """Mount and serve until SIGTERM, SIGINT or umount; then close `fs`.

    `place` is the mount point, or the descriptor of an existing mount. Raises MountpointError, or
    Unavailable if data could not be committed.
    """
    directory = None if isinstance(place, int) else place
    # libfuse's syntax for an existing mount.
    where = f"/dev/fd/{place}" if directory is None else str(directory)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        loop.enable()
        operations = Operations(fs)
        try:
            pyfuse3.init(operations, where, set(OPTIONS))
        except RuntimeError:
            raise mounting.MountpointError(
                f"{where}: FUSE rejected the mount; check that /dev/fuse exists and you are root"
            ) from None
        if fs.leases is not None:
            operations.attach(Kernel(device_descriptor()))
        await _until_unmounted(operations, directory, stop)
    finally:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await fs.close()
        except TimeoutError:
            raise Unavailable("data of files that are still open could not be committed") from None


async def _until_unmounted(
    operations: Operations, directory: Path | None, stop: asyncio.Event
) -> None:
    """Serve until `stop` is set or the file system is unmounted.

    `directory` is None if the mount belongs to the caller.
    """
    served = asyncio.create_task(pyfuse3.main(max_tasks=MAX_TASKS))
    stopped = asyncio.create_task(stop.wait())
    try:
        async with asyncio.timeout(INIT_TIMEOUT):
            await operations.initialised.wait()
        if directory is not None:
            with suppress(FileNotFoundError):  # already unmounted
                tune(directory)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.wait({served, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not served.done():
            if directory is not None:
                await _unmount(directory)
            # Boxes may still use the mount. For them, it ends after the active requests.
            pyfuse3.terminate()
            await asyncio.wait({served}, timeout=DRAIN_TIMEOUT)
        if served.done():
            served.result()
    finally:
        operations.watchdog.close()
        for task in (stopped, served):
            task.cancel()
        await asyncio.gather(stopped, served, return_exceptions=True)
        operations.detach()
        pyfuse3.close(unmount=directory is not None and device(directory) is not None)


async def _unmount(directory: Path) -> None:
    """Unmount in a thread, because the kernel sends requests to this process while it unmounts."""
    try:
        await asyncio.to_thread(mounting.unmount, directory, lazy=False)
    except OSError:
        if device(directory) is not None:
            await asyncio.to_thread(mounting.unmount, directory, lazy=True)


if __name__ == "__main__":
    sys.exit(main())
