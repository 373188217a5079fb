"""CRIU on this host: which one there is, and whether boxes can be suspended with it.

The distribution's is taken when it is new enough, else the one that `scripts/criu` unpacked into
a directory of its own. Whether it works here is known only when it was tried (`criu_selftest`),
which takes some seconds; the verdict is kept in the state directory and holds as long as CRIU,
runc and the kernel stay what they are.
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

from boxd.backends import criu_cache
from boxd.backends.criu_selftest import SelfTestFailed, try_out
from boxd.backends.records import write
from boxd.backends.run import ENVIRONMENT, run
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PREFIX = Path(__file__).resolve().parents[3] / ".build" / "criu"
"""Where `scripts/criu` unpacks it."""
OLDEST = (4, 3)
"""4.1 dies in the dump on present kernels; after a resume by 4.2 watches of files are deaf."""
KEPT = "suspend.json"
"""The verdict, in the state directory."""
WORK = "suspend-test"
"""Files of a self-test that is under way, in the state directory."""
EDITION = 1
"""Raised when the self-test asks for more: verdicts of older ones are void then."""
WAIT_TIMEOUT = 90.0
"""Seconds for another process's self-test to end."""
VERSION_TIMEOUT = 10.0
RENEW = "run scripts/criu, or install CRIU 4.3 or newer"
NOTHING_TO_DO = (
    "boxes that stop start again from their disk; it is tried anew with another kernel, runc or "
    "CRIU, and by boxd doctor"
)
_VERSION = re.compile(r"^Version:\s*(\d+(?:\.\d+)+)", re.M)
_MINOR = re.compile(r"[0-9]+\.[0-9]+(?![0-9])")

Trial: TypeAlias = Callable[[Path, Path], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Program:
    """A CRIU that runs."""

    path: Path
    version: tuple[int, ...]

    @property
    def text(self) -> str:
        """The version as it is written."""
        return ".".join(map(str, self.version))

    @property
    def suffices(self) -> bool:
        """Whether it is new enough to be tried."""
        return self.version >= OLDEST


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether boxes can be suspended here, and if not, why not.

    `text` says what was found, also to people who wanted to suspend a box; `remedy` what can be
    done about it.
    """

    program: Program | None
    text: str
    suspends: bool = False
    remedy: str = ""
    tools: str = ""
    """Versions of CRIU, runc and kernel where boxes can be suspended."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Where programs are looked for, and how CRIU is tried."""

    path: str = ENVIRONMENT["PATH"]
    prefix: Path = PREFIX
    trial: Trial = try_out


TOOLS = Tools()


async def find(tools: Tools = TOOLS) -> Program | None:
    """The first CRIU that is new enough; else the newest that runs, else None."""
    places = [shutil.which("criu", path=tools.path), tools.prefix / "bin" / "criu"]
    programs = [await _look_at(Path(place)) for place in places if place is not None]
    running = [program for program in programs if program is not None]
    for program in running:
        if program.suffices:
            return program
    return max(running, key=lambda program: program.version, default=None)


async def verdict(state_dir: Path, *, again: bool = False, tools: Tools = TOOLS) -> Verdict:
    """Whether boxes can be suspended here, tried with a box in `state_dir` unless it is known.

    `again`: a refusal is not taken from an earlier look. What hindered the trial itself (no time,
    no disk) is never remembered. May be called twice at once; the second one waits.
    """
    if os.geteuid() != 0:
        return _no(None, "only root can make boxes and suspend them", "run as root (sudo boxd ...)")
    program = await find(tools)
    if program is None:
        return _no(None, "there is no CRIU on this host", RENEW)
    if not program.suffices:
        needed = ".".join(map(str, OLDEST))
        why = f"CRIU {program.text} is too old for it, {needed} or newer is needed"
        return _no(program, why, RENEW)
    try:
        criu_cache.drop(only_old=True)
        runc = await _runc_version(tools)
        kernel = os.uname().release
        # A patch release of runc hands CRIU the same; what it was tried with is told exactly.
        versions = f"criu {program.text} runc {_minor(runc)} linux {kernel}"
        key = f"{EDITION} criu {program.text} runc {runc} linux {kernel}"
        found = f"CRIU {program.text}, tried with runc {runc}"
        async with _alone(state_dir):
            refusal = _known(state_dir, key)
            if refusal is None or (refusal and again):
                refusal = await _try(state_dir, program, key, tools.trial)
    except (BoxdError, OSError) as error:
        return _no(program, f"suspending could not be tried: {error}", NOTHING_TO_DO)
    if refusal:
        return _no(program, f"CRIU {program.text} failed when it was tried: {refusal}")
    return Verdict(program, found, suspends=True, tools=versions)


def _no(program: Program | None, why: str, remedy: str = NOTHING_TO_DO) -> Verdict:
    return Verdict(program, f"boxes cannot suspend here: {why}", remedy=remedy)


async def _look_at(path: Path) -> Program | None:
    """None when there is none at the path, or one that does not run."""
    if not os.access(path, os.X_OK):
        return None
    try:
        said = await run(str(path), "--version", timeout=VERSION_TIMEOUT)
    except (BoxdError, OSError):
        return None
    match = _VERSION.search(said)
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
    """`1.1` of `1.1.5+ds1`; what is no version stays."""
    match = _MINOR.match(version)
    return match[0] if match else version


async def _try(state_dir: Path, program: Program, key: str, trial: Trial) -> str:
    """Tries it and remembers the outcome: empty, or why it is refused."""
    refusal = ""
    try:
        await trial(program.path, state_dir / WORK)
    except SelfTestFailed as failure:
        refusal = str(failure)
    write(state_dir / KEPT, json.dumps({"with": key, "refusal": refusal}))
    return refusal


def _known(state_dir: Path, key: str) -> str | None:
    """The remembered outcome of a trial with these very programs; None when there is none."""
    try:
        kept = json.loads((state_dir / KEPT).read_text())
        return str(kept["refusal"]) if kept["with"] == key else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


@asynccontextmanager
async def _alone(directory: Path) -> AsyncIterator[None]:
    """Keeps other processes, and other tasks of this one, from trying at the same time."""
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
        raise Unavailable("another self-test does not come to its end") from None
