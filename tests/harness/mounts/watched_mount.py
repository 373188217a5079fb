"""The mount process that can be looked into: `python -m tests.harness.mounts.watched_mount`.

Beside the options of `box_guest.mount`: `--old-kernel` lets the kernel answer as one does that has
no FUSE_NOTIFY_INC_EPOCH (before Linux 6.16); `--room N` bounds what is kept by leases; `--ages S`
are the seconds after which an answer counts as taken over by the kernel; with `--hold-lookups` a
test can stop a LOOKUP (`WatchedMount.held_lookup`). When it is asked, by a signal, it tells what it
has done and what it keeps: see `Told`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyfuse3

from box_guest.mount import kernel as kernels
from box_guest.mount.__main__ import main
from box_guest.mount.kernel import NOTIFY_INC_EPOCH, Kernel
from box_guest.mount.operations import Operations
from tests.harness import wait
from tests.harness.mounts.drive import MountProcess, until
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.meta.postgres.links import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from wrkfs.config import VolumeConfig
    from wrkfs.meta.leases.lease_table import LeaseTable

    Method: TypeAlias = Callable[..., Coroutine[object, object, object]]

ASK = signal.SIGUSR1
UNKNOWN = 0x7FFF
"""A code of a notification that no kernel knows: it answers EINVAL."""
QUESTIONS = ("lookup", "find", "getattr", "stat", "parent", "readdir", "file_map", "open")
"""Statements that a cold stat, listing or reading asks."""


@dataclass
class Told:
    """What a mount process told. Requests are counted when they begin."""

    requests: Counter[str] = field(default_factory=Counter)
    """FUSE requests by handler."""
    trips: Counter[str] = field(default_factory=Counter)
    """Round trips to the database by statement."""
    forgets_names: bool | None = None
    """See `Kernel`; None: there is none."""
    kept: int = 0
    """What is kept at this moment, as `lease_table.ROOM` counts, in all leased directories."""
    most: int = 0
    """The most that was kept after any request, with `--room`."""
    leased: int = 0
    """Directories."""
    names: int = 0
    """Names that are kept."""
    homes: int = 0
    """Files whose place is known."""

    def questions(self) -> int:
        """Round trips that would not have been made with everything kept."""
        return sum(self.trips[name] for name in (*QUESTIONS, "take_lease"))


@dataclass(frozen=True)
class HeldLookup:
    """A LOOKUP that stops. `wanted` holds its name until it comes."""

    wanted: Path

    @property
    def stopped(self) -> Path:
        """The same file while the LOOKUP is stopped."""
        return self.wanted.with_name("lookup.held")

    def reached(self) -> None:
        """Returns when the LOOKUP has come."""
        until(self.stopped.exists)

    def release(self) -> None:
        """Lets it go on."""
        self.wanted.unlink(missing_ok=True)
        self.stopped.unlink(missing_ok=True)

    async def stop(self, name: bytes) -> None:
        """In the mount process: stops if the name is the one."""
        if not self.wanted.exists() or self.wanted.read_bytes() != name:
            return
        self.wanted.rename(self.stopped)
        await wait.until(lambda: not self.stopped.exists())


class WatchedMount(MountProcess):
    """Such a process, and what it tells."""

    PROGRAM = "tests.harness.mounts.watched_mount"

    def __init__(self, config: VolumeConfig, directory: Path, *options: str) -> None:
        """`options`: of `box_guest.mount`, and those of the module."""
        self._answer = directory / "told"
        super().__init__(config, directory, "--told", str(self._answer), *options)

    @contextmanager
    def held_lookup(self, name: str) -> Iterator[HeldLookup]:
        """Stops the next LOOKUP of a name before it is answered, until the body ends."""
        held = HeldLookup(self._answer.with_name("lookup.hold"))
        held.wanted.write_text(name)
        try:
            yield held
        finally:
            held.release()

    def ask(self) -> Told:
        """What it has done since it began, and keeps now."""
        self._answer.unlink(missing_ok=True)
        assert self._process is not None
        self._process.send_signal(ASK)
        until(self._answer.exists)
        told = Told(**json.loads(self._answer.read_text()))
        told.requests, told.trips = Counter(told.requests), Counter(told.trips)
        return told


class Watch:
    """Sits in the mount process, around what it does."""

    def __init__(self, answer: Path) -> None:
        self._answer = answer
        self._told = Told()
        self._bounded = False
        self._table: LeaseTable | None = None
        self._kernel: Kernel | None = None

    def install(self, *, old_kernel: bool, room: int | None) -> None:
        """Before the mount begins."""
        for name in dir(pyfuse3.Operations):
            if asyncio.iscoroutinefunction(getattr(Operations, name)):
                self._around(Operations, name, self._request(name))
        self._around(Link, "fetch", lambda args: self._told.trips.update([str(args[1])]))
        self._around(LeasedMeta, "start", self._started)
        attach = Operations.attach

        def attached(operations: Operations, kernel: Kernel) -> None:
            self._kernel = kernel
            attach(operations, kernel)

        replace(Operations, "attach", attached)
        if old_kernel:
            forget_epochs()
        if room is not None:
            self._bounded = True
            defaults = LeasedMeta.__init__.__kwdefaults__
            assert defaults is not None
            assert "room" in defaults
            defaults["room"] = room

    def _request(self, name: str) -> Callable[[tuple[object, ...]], None]:
        return lambda _: self._told.requests.update([name])

    def _around(self, owner: type, name: str, note: Callable[[tuple[object, ...]], None]) -> None:
        call: Method = getattr(owner, name)

        @functools.wraps(call)
        async def noted(*args: object, **named: object) -> object:
            note(args)
            try:
                return await call(*args, **named)
            finally:
                if self._bounded:
                    self._look()

        replace(owner, name, noted)

    def _started(self, args: tuple[object, ...]) -> None:
        (found,) = args
        assert isinstance(found, LeasedMeta)
        self._table = found.table
        asyncio.get_running_loop().add_signal_handler(ASK, self._tell)

    def _look(self) -> None:
        told = self._told
        if self._table is not None:
            told.kept = sum(map(len, self._table.directories.values()))
            told.most = max(told.most, told.kept)

    def _tell(self) -> None:
        self._look()
        told = self._told
        assert self._table is not None
        told.leased, told.homes = len(self._table.directories), len(self._table.homes)
        told.names = sum(len(cached.names) for cached in self._table.directories.values())
        told.forgets_names = None if self._kernel is None else self._kernel.forgets_names
        part = self._answer.with_name("told.part")
        part.write_text(json.dumps(vars(told)))
        part.rename(self._answer)


def forget_epochs() -> None:
    """The kernel answers INC_EPOCH as it answers any code that it does not know."""
    send = Kernel._send

    def sent(kernel: Kernel, code: int, payload: bytes) -> bool:
        return send(kernel, UNKNOWN if code == NOTIFY_INC_EPOCH else code, payload)

    replace(Kernel, "_send", sent)


def hold_lookups(held: HeldLookup) -> None:
    """The LOOKUP that a test wants to stop does so."""
    lookup: Method = Operations.lookup

    @functools.wraps(lookup)
    async def stopping(operations: Operations, *args: object) -> object:
        name = args[1]
        assert isinstance(name, bytes)
        await held.stop(name)
        return await lookup(operations, *args)

    replace(Operations, "lookup", stopping)


def replace(owner: object, name: str, thing: object) -> None:
    """Puts something in the place of what the product has there."""
    assert hasattr(owner, name), name
    setattr(owner, name, thing)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--told", type=Path, required=True)
    parser.add_argument("--old-kernel", action="store_true")
    parser.add_argument("--room", type=int)
    parser.add_argument("--ages", type=float)
    parser.add_argument("--hold-lookups", action="store_true")
    arguments, sys.argv[1:] = parser.parse_known_args()
    if arguments.ages is not None:
        replace(kernels, "ENTRY_AGE", arguments.ages)
        replace(kernels, "LISTING_AGE", arguments.ages)
    if arguments.hold_lookups:
        hold_lookups(HeldLookup(arguments.told.with_name("lookup.hold")))
    Watch(arguments.told).install(old_kernel=arguments.old_kernel, room=arguments.room)
    sys.exit(main())
