"""Finds CRIU on this host, and decides whether it can suspend boxes.

The distribution's CRIU is used if it is new enough, else the one that `scripts/criu` unpacked into
its own directory. Only a trial shows whether it works here (`criu_selftest`). A trial takes some
seconds. The state directory stores the verdict, which is valid until CRIU, runc or the kernel
changes.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from boxd.backends.checkpoint import criu_cache
from boxd.backends.checkpoint.criu_config import OLDEST
from boxd.backends.checkpoint.criu_selftest import SelfTestFailed, try_out
from boxd.backends.host.programs import unpacked
from boxd.backends.host.run import ENVIRONMENT, run
from boxd.backends.records import write
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PREFIX = unpacked("criu")
"""The directory of the CRIU that `scripts/criu` unpacks."""
KEPT = "suspend.json"
"""File of the verdict, in the state directory."""
WORK = "suspend-test"
"""Directory of a running self-test, in the state directory."""
EDITION = 2
"""Version of the self-test. An increase invalidates older verdicts."""
WAIT_TIMEOUT = 90.0
"""Seconds to wait for another process's self-test to end."""
VERSION_TIMEOUT = 10.0
RENEW = "run scripts/criu, or install CRIU 4.3 or newer"
NOTHING_TO_DO = (
    "a box that stops starts again from its disk; boxd tries again after a change of kernel, runc "
    "or CRIU, and with boxd doctor"
)
_VERSION = re.compile(r"^Version:\s*(\d+(?:\.\d+)+)", re.M)
_MINOR = re.compile(r"[0-9]+\.[0-9]+(?![0-9])")

Trial: TypeAlias = Callable[[Path, Path], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Program:
    """An executable CRIU."""

    path: Path
    version: tuple[int, ...]

    @property
    def text(self) -> str:
        """The version in dotted form."""
        return ".".join(map(str, self.version))

    @property
    def suffices(self) -> bool:
        """Whether the version is new enough for a trial."""
        return self.version >= OLDEST


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether boxes can be suspended on this host, and if not, why.

    `text` is the result, also shown to users who want to suspend a box. `remedy` is what to do.
    """

    program: Program | None
    text: str
    suspends: bool = False
    remedy: str = ""
    tools: str = ""
    """Versions of CRIU, runc and kernel, if boxes can be suspended."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The search path for programs, and the trial of CRIU."""

    path: str = ENVIRONMENT["PATH"]
    prefix: Path = PREFIX
    trial: Trial = try_out


TOOLS = Tools()


async def find(tools: Tools = TOOLS) -> Program | None:
    """Return the first CRIU that is new enough, else the newest that runs, else None."""
    places = [shutil.which("criu", path=tools.path), tools.prefix / "bin" / "criu"]
    programs = [await _look_at(Path(place)) for place in places if place is not None]
    running = [program for program in programs if program is not None]
    for program in running:
        if program.suffices:
            return program
    return max(running, key=lambda program: program.version, default=None)


async def verdict(state_dir: Path, *, again: bool = False, tools: Tools = TOOLS) -> Verdict:
    """Return whether boxes can be suspended here; runs a trial in `state_dir` if needed.

    With `again`, the method ignores a stored refusal and runs the trial again. It never stores
    problems of the trial itself (no time, no disk space). Concurrent calls wait for each other.
    """
    if os.geteuid() != 0:
        return _no(None, "only root can make boxes and suspend them", "run as root (sudo boxd ...)")
    program = await find(tools)
    if program is None:
        return _no(None, "CRIU is not installed on this host", RENEW)
    if not program.suffices:
        needed = ".".join(map(str, OLDEST))
        why = f"CRIU {program.text} is too old, {needed} or newer is needed"
        return _no(program, why, RENEW)
    try:
        criu_cache.drop(only_old=True)
        runc = await _runc_version(tools)
        kernel = os.uname().release
        # Patch releases of runc pass CRIU the same data. The stored key has the exact version.
        versions = f"criu {program.text} runc {_minor(runc)} linux {kernel}"
        key = f"{EDITION} criu {program.text} runc {runc} linux {kernel}"
        summary = f"CRIU {program.text}, tried with runc {runc}"
        async with _alone(state_dir):
            refusal = _stored_verdict(state_dir, key)
            if refusal is None or (refusal and again):
                refusal = await _try(state_dir, program, key, tools.trial)
    except (BoxdError, OSError) as error:
        return _no(program, f"the trial of CRIU could not run: {error}", NOTHING_TO_DO)
    if refusal:
        return _no(program, f"CRIU {program.text} failed its trial: {refusal}")
    return Verdict(program, summary, suspends=True, tools=versions)


def _no(program: Program | None, why: str, remedy: str = NOTHING_TO_DO) -> Verdict:
    return Verdict(program, f"boxes cannot suspend here: {why}", remedy=remedy)


async def _look_at(path: Path) -> Program | None:
    """Return the CRIU at a path, or None if there is none or it does not run."""
    if not os.access(path, os.X_OK):
        return None
    try:
        output = await run(str(path), "--version", timeout=VERSION_TIMEOUT)
    except (BoxdError, OSError):
        return None
    match = _VERSION.search(output)
    if match is None:
        return None
    return Program(path, tuple(map(int, match[1].split("."))))


async def _runc_version(tools: Tools) -> str:
    runc = shutil.which("runc", path=tools.path)
    if runc is None:
        raise Unavailable("runc is not installed on this host")
    first = (await run(runc, "--version", timeout=VERSION_TIMEOUT)).splitlines()[:1]
    return first[0].rpartition(" ")[2] if first else "unknown"


def _minor(version: str) -> str:
    """Shorten `1.1.5+ds1` to `1.1`. Other text is returned unchanged."""
    match = _MINOR.match(version)
    return match[0] if match else version


async def _try(state_dir: Path, program: Program, key: str, trial: Trial) -> str:
    """Run a trial and store its result. Return "" for success, else the reason of the refusal."""
    refusal = ""
    try:
        await trial(program.path, state_dir / WORK)
    except SelfTestFailed as failure:
        refusal = str(failure)
    write(state_dir / KEPT, json.dumps({"with": key, "refusal": refusal}))
    return refusal


def _stored_verdict(state_dir: Path, key: str) -> str | None:
    """Return the stored result of a trial with exactly these versions, or None."""
    try:
        stored = json.loads((state_dir / KEPT).read_text())
        return str(stored["refusal"]) if stored["with"] == key else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


@asynccontextmanager
async def _alone(directory: Path) -> AsyncIterator[None]:
    """Exclude other processes, and other tasks of this process, from running a trial."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        await _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


async def _lock(descriptor: int) -> None:
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(0.1)
                else:
                    return
    except TimeoutError:
        raise Unavailable("another self-test is running and does not end") from None
