"""Makes a root of an archive or a directory that somebody hands over.

`unpack` does it, in a process that is locked in; this file starts it, ends it when it takes too
long, and gives the result its name by one rename. A directory comes in as an archive that `tar`
writes on the way, so that there is one way in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from boxd.errors import BadRequest, Unavailable
from boxd.images import unpack
from boxd.images.build import ENVIRONMENT
from boxd.images.progress import Progress
from boxd.images.versions import remove_tree, remove_unfinished, unfinished

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIMEOUT = 1800.0
"""Seconds for one import."""
FLOOR = 1 << 30
"""Bytes that an import leaves free on the host's disk."""
SANDBOX = (
    *("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"),
    *("--propagation", "slave", "--"),
    *("setpriv", "--no-new-privs", "--inh-caps=-all"),
    "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+sys_chroot",
)
"""Sees no network and no process of the host, and may only change files and its root."""
PROGRAM = "import sys; from boxd.images.unpack import main; main(*sys.argv[1:])"
MAX_ANSWER = 1 << 20
_KEPT = 2000
_ARCHIVES = "a tar archive, as it is or compressed by gzip, bzip2, xz or zstd"


@dataclass(frozen=True, slots=True)
class Imported:
    """A new root. `bytes` are the sizes of its files; `notes` are lines for people."""

    root: Path
    entries: int
    bytes: int
    notes: tuple[str, ...]


def check_source(source: Path) -> None:
    """Refuses what is neither a file nor a directory that can be read. BadRequest."""
    try:
        mode = source.stat().st_mode
    except OSError as error:
        raise BadRequest(f"{source}: {error.strerror}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise BadRequest(f"{source} is neither a file nor a directory")


async def import_root(
    source: Path,
    target: Path,
    progress: Callable[[Progress], None],
    *,
    bounds: unpack.Bounds | None = None,
) -> Imported:
    """Makes the root at `target`, which must not exist, of an archive or a directory.

    Raises BadRequest saying what is wrong with the source, and Unavailable; `target` does not
    exist then, and nothing is left.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(remove_unfinished, target.parent)
    work = unfinished(target.parent)
    try:
        for name in (unpack.STAGE, unpack.ROOT):
            (work / name).mkdir(parents=True)
        bounds = _within(bounds or unpack.Bounds(), work)
        report = await _unpack(source, work, bounds, progress)
        progress(Progress(95.0, "writing to the disk"))
        await asyncio.to_thread(os.sync)
        (work / str(report["where"])).rename(target)
    finally:
        await asyncio.shield(asyncio.to_thread(remove_tree, work))
    progress(Progress(100.0, "done"))
    return Imported(target, report["entries"], report["bytes"], tuple(report["notes"]))


def _within(bounds: unpack.Bounds, work: Path) -> unpack.Bounds:
    """The bounds, and no more than the disk has."""
    disk = os.statvfs(work)
    free = disk.f_bavail * disk.f_frsize - FLOOR
    if free <= 0:
        raise Unavailable(f"the host's disk has less than {FLOOR >> 30} GiB free; make room first")
    return unpack.Bounds(**asdict(bounds) | {"total_bytes": min(bounds.total_bytes, free)})


async def _unpack(
    source: Path, work: Path, bounds: unpack.Bounds, progress: Callable[[Progress], None]
) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        archive, feeder = await _archive(source, stack)
        try:
            size = os.fstat(archive).st_size if feeder is None else 0
            process = await _start(
                *SANDBOX,
                *(sys.executable, "-I", "-c", PROGRAM, str(work), json.dumps(asdict(bounds))),
                stdin=archive,
                stdout=asyncio.subprocess.PIPE,
            )
        finally:
            os.close(archive)
        stack.push_async_callback(_end, process)
        report: dict[str, Any]
        try:
            async with asyncio.timeout(TIMEOUT):
                report, words = await asyncio.gather(
                    _report(process, size, progress), _words(process)
                )
                status = await process.wait()
                if feeder is not None and "where" in report:
                    await _finished(feeder, source)
        except TimeoutError:
            raise BadRequest(f"{source}: unpacking it takes longer than {TIMEOUT:.0f} s") from None
    if "error" in report:
        raise BadRequest(f"{source}: {report['error']}")
    if "where" not in report:
        raise Unavailable(f"{source}: unpacking ended with status {status}: {words or 'no words'}")
    return report


async def _archive(
    source: Path, stack: contextlib.AsyncExitStack
) -> tuple[int, asyncio.subprocess.Process | None]:
    """Where the archive is read from, and who writes it if it is made on the way."""
    if await asyncio.to_thread(source.is_dir):
        command = ["tar", "--create", "--one-file-system", "--numeric-owner", "--format=pax"]
        return await _fed(stack, *command, "--directory", str(source), ".", stdin=None)
    file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(file, 512, 0)
        if head.startswith(unpack.ZSTD):
            return await _fed(stack, "zstd", "--decompress", "--stdout", "--quiet", stdin=file)
        if not head.startswith(unpack.COMPRESSED) and head[257:262] != b"ustar":
            raise BadRequest(f"{source} is not {_ARCHIVES}")
        return os.dup(file), None
    finally:
        os.close(file)


async def _fed(
    stack: contextlib.AsyncExitStack, *command: str, stdin: int | None
) -> tuple[int, asyncio.subprocess.Process]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        feeder = await _start(*command, stdin=stdin, stdout=writing)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    stack.push_async_callback(_end, feeder)
    return reading, feeder


async def _start(*command: str, stdin: int | None, stdout: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
            limit=MAX_ANSWER,
        )
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not installed on this host") from None


async def _report(
    process: asyncio.subprocess.Process, size: int, progress: Callable[[Progress], None]
) -> dict[str, Any]:
    """The last line that the process writes; what it writes before is how far it is."""
    line: dict[str, Any] = {}
    if process.stdout is not None:
        async for raw in process.stdout:
            line = json.loads(raw)
            if "read" in line:
                share = line["read"] / size if size else 0.0
                progress(Progress(round(90.0 * min(share, 1.0)), "unpacking"))
    return line


async def _words(process: asyncio.subprocess.Process) -> str:
    said = b"" if process.stderr is None else await process.stderr.read()
    return said.decode(errors="replace").strip()[-_KEPT:]


async def _finished(feeder: asyncio.subprocess.Process, source: Path) -> None:
    words = await _words(feeder)
    if await feeder.wait() != 0:
        raise BadRequest(f"{source} cannot be read: {words}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Everything the process started is dead when this returns: its streams are at their end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            await stream.read()
    await process.wait()
