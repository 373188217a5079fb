"""The mount process: serves one volume at one directory until SIGTERM.

`python -m box_guest.mount (--credentials-fd N | --credentials FILE) (MOUNTPOINT | --fuse-fd N)`.
Credentials come on an inherited pipe or from a file of mode 0600, never as argument or environment.
With `--fuse-fd` somebody else has mounted and will unmount: this process serves that descriptor. It
prints one line, `ready`, when the drive can be used. Exit status: 0 after SIGTERM or umount, 1 for
an error, 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyfuse3
import uvloop

from box_guest.mount import loop, status
from box_guest.mount import mountpoint as mounting
from box_guest.mount.kernel import Kernel, device_descriptor
from box_guest.mount.memory import collect_rarely
from box_guest.mount.operations import Operations
from wrkfs import upkeep
from wrkfs.config import ConfigError, Limits, VolumeConfig
from wrkfs.errors import Unavailable, WrkfsError
from wrkfs.fs import Filesystem
from wrkfs.upkeep import PACE, Pace

if TYPE_CHECKING:
    from collections.abc import Awaitable

log = logging.getLogger("box_guest.mount")

OPTIONS = frozenset(
    {"fsname=wrk", "subtype=wrkfs", "allow_other", "default_permissions", "nosuid", "nodev"}
)
MAX_TASKS = 1024
"""Requests in work at once; above it they wait in the kernel."""
INIT_TIMEOUT = 10.0
"""Seconds for the kernel's first request."""
DRAIN_TIMEOUT = 8.0
"""Seconds that requests in work have to end after SIGTERM, and again for the last commits."""
MAX_CREDENTIALS = 64 * 1024
CACHE_SIZE = 4 << 30
"""Bytes of the disk cache, where one is wanted and its size is not told."""


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="box_guest.mount", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--credentials-fd", type=int, metavar="N")
    source.add_argument("--credentials", type=Path, metavar="FILE")
    cache = parser.add_argument
    cache("--cache-dir", type=Path, metavar="DIR", help="keep blocks below DIR, also after the end")
    cache(
        "--cache-size", type=int, default=CACHE_SIZE, metavar="BYTES", help="at most so much there"
    )
    parser.add_argument(
        "--status", type=Path, metavar="SOCKET", help="tell there how the mount does"
    )
    option = parser.add_argument
    option(
        "--upkeep", type=float, default=PACE.interval, metavar="S", help="seconds between rounds"
    )
    option(
        "--grace",
        type=float,
        default=PACE.grace.total_seconds(),
        metavar="S",
        help="seconds that garbage stays in the store; more than the longest read takes",
    )
    option(
        "--no-leases",
        dest="leases",
        action="store_false",
        help="ask the database each time, and keep nothing that others may change",
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--fuse-fd", type=int, metavar="N", help="serve a mount that was made")
    place.add_argument("mountpoint", type=Path, nargs="?")
    arguments = parser.parse_args()
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
            limits = Limits(disk=arguments.cache_size, cache_dir=arguments.cache_dir)
            pace = Pace(arguments.upkeep, timedelta(seconds=arguments.grace))
            fs = Filesystem.connect(config, limits=limits, leases=arguments.leases)
            runner.run(_run(fs, directory, pace, arguments.status))
            return 0
    except (ConfigError, mounting.MountpointError, WrkfsError) as error:
        sys.stderr.write(f"box_guest.mount: {error}\n")
        return 1


def _credentials(descriptor: int | None, file: Path | None) -> VolumeConfig:
    if descriptor is None:
        if file is None:
            raise ConfigError("no credentials were named")
        return VolumeConfig.from_file(file)
    try:
        with os.fdopen(descriptor, encoding="utf-8") as pipe:
            return VolumeConfig.from_json(pipe.read(MAX_CREDENTIALS))
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"descriptor {descriptor} cannot be read") from None


async def _run(
    connecting: Awaitable[Filesystem], place: Path | int, pace: Pace, socket: Path | None
) -> None:
    fs = await connecting
    collect_rarely()
    upkeep.start(fs, pace)
    async with status.serving(fs, socket):
        await serve(fs, place)


async def serve(fs: Filesystem, place: Path | int) -> None:
    """Mounts and serves until SIGTERM, SIGINT or umount; closes `fs`. MountpointError.

    `place`: the directory, or the descriptor of a mount that was made.
    """
    directory = None if isinstance(place, int) else place
    # libfuse's own spelling of a mount that was made.
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
                f"{where}: FUSE refused the mount; is there a /dev/fuse, and are you root?"
            ) from None
        if fs.leases is not None:
            operations.attach(Kernel(device_descriptor()))
        await _until_unmounted(operations, directory, stop)
    finally:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await fs.close()
        except TimeoutError:
            raise Unavailable("bytes that were not closed could not be committed") from None


async def _until_unmounted(
    operations: Operations, directory: Path | None, stop: asyncio.Event
) -> None:
    """Serves until `stop` is set or someone unmounts. `directory` None: it is not ours."""
    served = asyncio.create_task(pyfuse3.main(max_tasks=MAX_TASKS))
    stopped = asyncio.create_task(stop.wait())
    try:
        async with asyncio.timeout(INIT_TIMEOUT):
            await operations.initialised.wait()
        if directory is not None:
            mounting.tune(directory)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.wait({served, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not served.done():
            if directory is not None:
                await _unmount(directory)
            # Boxes may hold the mount still: it ends for them with the requests in work.
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
        pyfuse3.close(unmount=directory is not None and mounting.device(directory) is not None)


async def _unmount(directory: Path) -> None:
    """In a thread, because the kernel asks this process while it unmounts."""
    try:
        await asyncio.to_thread(mounting.unmount, directory, lazy=False)
    except OSError:
        if mounting.device(directory) is not None:
            await asyncio.to_thread(mounting.unmount, directory, lazy=True)


if __name__ == "__main__":
    sys.exit(main())
