"""Imports the root of an image from an untrusted archive or directory.

`unpack` does the work in a confined process. This module starts the process, ends it after a time
limit, and gives the result its name with one rename. For a directory, `tar` writes an archive on
the fly, so that there is only one import path.
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
from boxd.subprocesses import kill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIMEOUT = 1800.0
"""Time limit of an import, in seconds."""
MIN_FREE = 1 << 30
"""Bytes that an import leaves free on the host's disk."""
SANDBOX = (
    "unshare",
    "--mount",
    "--pid",
    "--net",
    "--ipc",
    "--uts",
    "--fork",
    "--kill-child",
    "--propagation",
    "slave",
    "--",
    "setpriv",
    "--no-new-privs",
    "--inh-caps=-all",
    "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+sys_chroot",
)
"""The process sees no network and no process of the host, and may only change files and chroot."""
PROGRAM = "import sys; from boxd.images.unpack import main; main(*sys.argv[1:])"
MAX_ANSWER = 1 << 20
_MAX_QUOTE = 2000
"""Maximum length of a quotation from a program's error output, in characters."""
_ARCHIVES = "a tar archive, as it is or compressed by gzip, bzip2, xz or zstd"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """A new root. `bytes` is the total size of its files; `notes` are lines for users."""

    root: Path
    entries: int
    bytes: int
    notes: tuple[str, ...]


def check_source(source: Path) -> None:
    """Raise BadRequest unless the source is a file or a directory."""
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
) -> ImportResult:
    """Import an archive or a directory as the root `target`, which must not exist.

    Raises BadRequest with the error in the source, or Unavailable; then nothing is left.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(remove_unfinished, target.parent)
    work = unfinished(target.parent)
    try:
        for name in (unpack.STAGE, unpack.ROOT):
            (work / name).mkdir(parents=True)
        bounds = _bounded_by_disk(bounds or unpack.Bounds(), work)
        report = await _unpack(source, work, bounds, progress)
        progress(Progress(95.0, "writing to the disk"))
        await asyncio.to_thread(os.sync)
        (work / str(report["where"])).rename(target)
    finally:
        await asyncio.shield(asyncio.to_thread(remove_tree, work))
    progress(Progress(100.0, "done"))
    return ImportResult(target, report["entries"], report["bytes"], tuple(report["notes"]))


def _bounded_by_disk(bounds: unpack.Bounds, work: Path) -> unpack.Bounds:
    """Return the bounds, limited to the free space of the disk."""
    disk = os.statvfs(work)
    free = disk.f_bavail * disk.f_frsize - MIN_FREE
    if free <= 0:
        raise Unavailable(
            f"the host's disk has less than {MIN_FREE >> 30} GiB free; make room first"
        )
    return unpack.Bounds(**asdict(bounds) | {"total_bytes": min(bounds.total_bytes, free)})


async def _unpack(
    source: Path, work: Path, bounds: unpack.Bounds, progress: Callable[[Progress], None]
) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        archive, feeder = await _archive(source, stack)
        try:
            size = os.fstat(archive).st_size if feeder is None else 0
            limits = json.dumps(asdict(bounds))
            process = await _start(
                *SANDBOX,
                sys.executable,
                "-I",
                "-c",
                PROGRAM,
                str(work),
                limits,
                stdin=archive,
                stdout=asyncio.subprocess.PIPE,
            )
        finally:
            os.close(archive)
        stack.push_async_callback(_end, process)
        report: dict[str, Any]
        try:
            async with asyncio.timeout(TIMEOUT):
                report, errors = await asyncio.gather(
                    _report(process, size, progress), _error_output(process)
                )
                status = await process.wait()
                if feeder is not None and "where" in report:
                    await _check_feeder(feeder, source)
        except TimeoutError:
            raise BadRequest(
                f"{source}: unpacking takes longer than {TIMEOUT:.0f} s; make the image smaller"
            ) from None
    if "error" in report:
        raise BadRequest(f"{source}: {report['error']}")
    if "where" not in report:
        raise Unavailable(
            f"{source}: unpacking ended with status {status}: {errors or 'no error output'}"
        )
    return report


async def _archive(
    source: Path, stack: contextlib.AsyncExitStack
) -> tuple[int, asyncio.subprocess.Process | None]:
    """Return a descriptor of the archive, and the process that writes it, if there is one."""
    if await asyncio.to_thread(source.is_dir):
        command = ["tar", "--create", "--one-file-system", "--numeric-owner", "--format=pax"]
        return await _piped(stack, *command, "--directory", str(source), ".", stdin=None)
    file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(file, 512, 0)
        if head.startswith(unpack.ZSTD):
            return await _piped(stack, "zstd", "--decompress", "--stdout", "--quiet", stdin=file)
        if not head.startswith(unpack.COMPRESSED) and head[257:262] != b"ustar":
            raise BadRequest(f"{source} is not {_ARCHIVES}")
        return os.dup(file), None
    finally:
        os.close(file)


async def _piped(
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
        raise Unavailable(f"{command[0]} is not installed on this host; install it") from None


async def _report(
    process: asyncio.subprocess.Process, size: int, progress: Callable[[Progress], None]
) -> dict[str, Any]:
    """Return the last line of the process. The lines before it report progress."""
    line: dict[str, Any] = {}
    if process.stdout is not None:
        async for raw in process.stdout:
            line = json.loads(raw)
            if "read" in line:
                share = line["read"] / size if size else 0.0
                progress(Progress(round(90.0 * min(share, 1.0)), "unpacking"))
    return line


async def _error_output(process: asyncio.subprocess.Process) -> str:
    output = b"" if process.stderr is None else await process.stderr.read()
    return output.decode(errors="replace").strip()[-_MAX_QUOTE:]


async def _check_feeder(feeder: asyncio.subprocess.Process, source: Path) -> None:
    errors = await _error_output(feeder)
    if await feeder.wait() != 0:
        raise BadRequest(f"{source} cannot be read: {errors}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process and wait until its streams end, which shows that its children are dead."""
    kill(process)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            await stream.read()
    await process.wait()
