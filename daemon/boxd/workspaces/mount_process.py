"""Starts one mount process in a sandbox, and ends it.

The daemon mounts the file system and hands the descriptor of /dev/fuse to the process. The process
has an own user for each volume, so that one that a hostile request takes over reaches no data of
another volume.

::

    DIRECTORY/<volume id>/mnt              mount point of the volume
    DIRECTORY/<volume id>/pid              {"pid": ..., "start": ...}
    DIRECTORY/<volume id>/user             number of the process's user
    DIRECTORY/<volume id>/log              output of the process
    DIRECTORY/<volume id>/process/status   socket for its health
    DIRECTORY/<volume id>/process/journal  its journals

Only `process`, and the volume's directory in the disk cache, belong to the process.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from box_guest.fuse import mounts as fuse
from box_guest.fuse.tuning import tune
from boxd.backends.host import id_maps
from boxd.embedded.files import write_private
from boxd.embedded.process import Process, end_processes_of, start_ticks
from boxd.errors import Unavailable
from boxd.sandbox.sandbox import Sandbox
from boxd.sandbox.users import FIRST_MOUNT, SIZE, hand_over
from boxd.workspaces.journals import JOURNAL, take_earlier
from wrkfs.data.diskcache import cache_directory

if TYPE_CHECKING:
    from boxd.sandbox.users import ServiceUsers
    from wrkfs.config import VolumeConfig

READY_TIMEOUT = 75.0
"""Seconds until a mount must be ready. A start may wait 60 s for a database that is down."""
UNMOUNT_TIMEOUT = 10.0
"""Seconds until the process must have written the kernel's dirty pages."""
END_STEPS = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0))
"""On SIGTERM the process commits. SIGKILL ends a process that hangs."""
_NUMBERS = threading.Lock()
"""Held while a volume gets its number. Mounts start in several threads."""
_FILES_OF_DSN = ("sslrootcert", "sslcrl")
"""Parameters of a connection string that name files. They must be readable by every user."""


@dataclass(frozen=True, slots=True)
class MountPlace:
    """The files of one volume's mount, below its own directory."""

    directory: Path

    @property
    def mountpoint(self) -> Path:
        """The mount point of the volume."""
        return self.directory / "mnt"

    @property
    def log(self) -> Path:
        """The output of the process."""
        return self.directory / "log"

    @property
    def record(self) -> Path:
        """The file with the identity of the process."""
        return self.directory / "pid"

    @property
    def own(self) -> Path:
        """The directory that belongs to the process."""
        return self.journal.parent

    @property
    def journal(self) -> Path:
        """The directory of its journals."""
        return self.directory / JOURNAL

    @property
    def status(self) -> Path:
        """The socket for its health."""
        # A process that an earlier release started runs on after an upgrade.
        earlier = self.directory / "status"
        return earlier if earlier.exists() else self.own / "status"

    @property
    def mounted(self) -> bool:
        """Whether the mount point has a mount. Makes no call on it."""
        return bool(fuse.mounts_at(self.mountpoint))

    def clear(self) -> None:
        """Unmount everything on the mount point, dead or alive. Raises Unavailable."""
        try:
            fuse.detach(self.mountpoint)
        except OSError as error:
            raise Unavailable(f"{self.mountpoint} cannot be unmounted: {error.strerror}") from None
        if self.mounted:
            raise Unavailable(f"{self.mountpoint}: too many mounts on it; unmount them")


@dataclass(frozen=True, slots=True)
class MountOptions:
    """What all mount processes of this host share.

    Each mount caches at most `cache_size` bytes of blocks below the directory `cache`. The
    directory `state` may have journals of mounts that ran without a sandbox.
    """

    users: ServiceUsers
    cache: Path | None = None
    cache_size: int = 0
    state: Path | None = None


async def start(place: MountPlace, config: VolumeConfig, options: MountOptions) -> Process:
    """Mount a volume and return its process when the drive can be used.

    Raises Unavailable; then no process or mount remains.
    """
    try:
        arguments, sandbox = await asyncio.to_thread(_prepare, place, config, options)
        device = fuse.mount(place.mountpoint)
    except OSError as error:
        raise Unavailable(f"cannot prepare the mount of the drive: {error}") from None
    try:
        process, ready = _spawn(place, config, arguments, sandbox, device)
    except OSError as error:
        place.clear()
        raise Unavailable(f"cannot start the mount of the drive: {error}") from None
    finally:
        os.close(device)
    try:
        identity = {"pid": process.pid, "start": start_ticks(process.pid)}
        write_private(place.record, json.dumps(identity).encode())
        await _until_ready(place, process, ready)
        with suppress(OSError):  # unmounted in the meantime, or a kernel without these limits
            tune(place.mountpoint)
    except BaseException:
        await process.end(END_STEPS[1:])
        process.close()
        place.clear()
        raise
    return process


async def end(place: MountPlace, process: Process) -> None:
    """Unmount, and end the process, which commits everything first. Boxes lose the mount."""
    unmount = asyncio.create_task(asyncio.to_thread(fuse.unmount, place.mountpoint))
    await asyncio.wait({unmount}, timeout=UNMOUNT_TIMEOUT)
    try:
        await process.end(END_STEPS)
    finally:
        process.close()
        with suppress(OSError):  # `clear` reports what remains
            await unmount


def find(place: MountPlace) -> Process | None:
    """Return the process that an earlier daemon started, if both process and mount exist."""
    try:
        identity = json.loads(place.record.read_text(encoding="utf-8"))
        pid, ticks = int(identity["pid"]), int(identity["start"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if start_ticks(pid) != ticks or not place.mounted:
        return None
    try:
        return Process(pid)
    except ProcessLookupError:
        return None


def journals_for(place: MountPlace, schema: str, options: MountOptions, user: int) -> int:
    """Return a descriptor of the directory of a volume's journals, as if it belonged to `user`.

    The mount process stays its owner. Raises OSError, also if the file system cannot map ids, and
    Unavailable.
    """
    if not place.journal.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place.journal))
    owner = options.users.of(_user_number(place))
    if options.state is not None and take_earlier(options.state, schema, place.journal):
        os.chown(place.own, 0, 0)  # for `hand_over`: the user does not own everything yet
        hand_over(place.own, owner)
    return id_maps.clone_for(place.journal, owner, user)


def _prepare(
    place: MountPlace, config: VolumeConfig, options: MountOptions
) -> tuple[list[str], Sandbox]:
    """Create the directories of a process; return its arguments and its sandbox."""
    place.directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    place.clear()
    place.mountpoint.mkdir(mode=0o755, exist_ok=True)
    (place.directory / "status").unlink(missing_ok=True)
    user = options.users.of(_user_number(place))
    end_processes_of(user)  # what an earlier process left
    place.own.mkdir(mode=0o700, exist_ok=True)
    if options.state is not None and take_earlier(options.state, config.schema, place.journal):
        os.chown(place.own, 0, 0)  # for `hand_over`: the user does not own everything yet
    writable = [place.own]
    # CRIU restores only locks that the kernel keeps itself.
    arguments = ["--local-locks", "--status", str(place.own / "status")]
    arguments += ["--journal", str(place.journal)]
    if options.cache is not None and options.cache_size:
        cache = _cache(options.cache, config)
        writable.append(cache)
        arguments += ["--cache-dir", str(cache), "--cache-size", str(options.cache_size)]
    for directory in writable:
        hand_over(directory, user)
    return arguments, Sandbox(user, "mount", files_of(config.meta_dsn), tuple(writable))


def _cache(base: Path, config: VolumeConfig) -> Path:
    """Return the directory for a volume's cache, with what a mount without a sandbox left."""
    cache = base / config.volume
    earlier = cache_directory(base, config)
    if earlier.exists():
        cache.mkdir(mode=0o700, exist_ok=True)
        earlier.rename(cache / earlier.name)
        os.chown(cache, 0, 0)  # for `hand_over`: the user does not own everything yet
    return cache


def _user_number(place: MountPlace) -> int:
    """Return the number of a volume's user, which no other volume of this host has."""
    with _NUMBERS:
        return _read_or_choose(place)


def _read_or_choose(place: MountPlace) -> int:
    file = place.directory / "user"
    with suppress(OSError, ValueError):
        return int(file.read_text(encoding="ascii"))
    used = set()
    for other in place.directory.parent.glob("*/user"):
        with suppress(OSError, ValueError):
            used.add(int(other.read_text(encoding="ascii")))
    number = next((n for n in range(FIRST_MOUNT, SIZE) if n not in used), None)
    if number is None:
        raise Unavailable(f"{place.directory.parent} has too many volumes; remove unused ones")
    write_private(file, str(number).encode("ascii"))
    return number


def files_of(dsn: str) -> tuple[Path, ...]:
    """Return the files and socket directories that a connection string names."""
    query = parse_qs(urlsplit(dsn).query)
    names = [value for name in ("host", *_FILES_OF_DSN) for value in query.get(name, ())]
    return tuple(Path(name) for text in names for name in text.split(",") if name.startswith("/"))


def _spawn(
    place: MountPlace,
    config: VolumeConfig,
    arguments: list[str],
    sandbox: Sandbox,
    device: int,
) -> tuple[Process, int]:
    """Start the process; return it and a descriptor of its standard output."""
    reader, writer = os.pipe()
    ready, stdout = os.pipe()
    try:
        process = Process.spawn(
            [
                sys.executable,
                "-m",
                "box_guest.mount",
                "--credentials-fd",
                str(reader),
                "--fuse-fd",
                str(device),
                *arguments,
            ],
            log=place.log,
            sandbox=sandbox,
            pass_fds=(reader, device),
            stdout=stdout,
        )
        # A pipe buffers 64 KiB without a reader; credentials are smaller.
        os.write(writer, config.to_json().encode())
    except BaseException:
        os.close(ready)
        raise
    finally:
        for descriptor in (reader, writer, stdout):
            os.close(descriptor)
    return process, ready


async def _until_ready(place: MountPlace, process: Process, ready: int) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(ready, "rb", buffering=0)
    )
    try:
        async with asyncio.timeout(READY_TIMEOUT):
            if await stream.readline() == b"ready\n":
                return
            await process.wait()
    except TimeoutError:
        raise Unavailable(f"the drive is not mounted; see {place.log}") from None
    finally:
        transport.close()
    raise Unavailable(f"the drive's mount ended with {process.status}; see {place.log}")
