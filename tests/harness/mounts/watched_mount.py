"""The mount process that reports its work: `python -m tests.harness.mounts.watched_mount`.

It takes the options of `box_guest.mount` and these: `--old-kernel` makes the kernel answer like one
without FUSE_NOTIFY_INC_EPOCH (before Linux 6.16). `--room N` limits the cache under leases. `--ages
S` sets the seconds after which the kernel counts as the holder of an answer. With `--hold-lookups`
a test can stop a LOOKUP (`WatchedMount.held_lookup`). On a signal, the process reports its work and
its cache: see `Told`.
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
"""A notification code that no kernel knows; the kernel answers EINVAL."""
QUESTIONS = ("lookup", "find", "getattr", "stat", "parent", "readdir", "file_map", "open")
"""Statements of an uncached stat, listing or read."""


@dataclass
class Told:
    """The report of a mount process. A request counts from its start."""

    requests: Counter[str] = field(default_factory=Counter)
    """FUSE requests by handler."""
    trips: Counter[str] = field(default_factory=Counter)
    """Round trips to the database by statement."""
    forgets_names: bool | None = None
    """The attribute of the same name of `Kernel`; None without a kernel."""
    kept: int = 0
    """Present size of the cache in all leased directories, in units of `lease_table.ROOM`."""
    most: int = 0
    """Largest size of the cache after any request, with `--room`."""
    leased: int = 0
    """Number of leased directories."""
    names: int = 0
    """Number of cached names."""
    homes: int = 0
    """Number of files whose place is known."""

    def questions(self) -> int:
        """Return the number of round trips that a full cache would avoid."""
        return sum(self.trips[name] for name in (*QUESTIONS, "take_lease"))


@dataclass(frozen=True)
class HeldLookup:
    """A LOOKUP that stops. The file `wanted` holds its name until the LOOKUP arrives."""

    wanted: Path

    @property
    def stopped(self) -> Path:
        """Return the path of the file while the LOOKUP is stopped."""
        return self.wanted.with_name("lookup.held")

    def reached(self) -> None:
        """Wait until the LOOKUP has arrived."""
        until(self.stopped.exists)

    def release(self) -> None:
        """Continue the LOOKUP."""
        self.wanted.unlink(missing_ok=True)
        self.stopped.unlink(missing_ok=True)

    async def stop(self, name: bytes) -> None:
        """Stop the LOOKUP if it has the wanted name. Runs in the mount process."""
        if not self.wanted.exists() or self.wanted.read_bytes() != name:
            return
        self.wanted.rename(self.stopped)
        await wait.until(lambda: not self.stopped.exists())


class WatchedMount(MountProcess):
    """A mount process that reports its work."""

    PROGRAM = "tests.harness.mounts.watched_mount"

    def __init__(self, config: VolumeConfig, directory: Path, *options: str) -> None:
        """`options` are those of `box_guest.mount` and of this module."""
        self._answer = directory / "told"
        super().__init__(config, directory, "--told", str(self._answer), *options)

    @contextmanager
    def held_lookup(self, name: str) -> Iterator[HeldLookup]:
        """Stop the next LOOKUP of a name before its answer, until the context ends."""
        held = HeldLookup(self._answer.with_name("lookup.hold"))
        held.wanted.write_text(name)
        try:
            yield held
        finally:
            held.release()

    def ask(self) -> Told:
        """Return the process's work since its start, and its present cache."""
        self._answer.unlink(missing_ok=True)
        assert self._process is not None
        self._process.send_signal(ASK)
        until(self._answer.exists)
        told = Told(**json.loads(self._answer.read_text()))
        told.requests, told.trips = Counter(told.requests), Counter(told.trips)
        return told


class Watch:
    """Observes the calls in the mount process."""

    def __init__(self, answer: Path) -> None:
        self._answer = answer
        self._told = Told()
        self._bounded = False
        self._table: LeaseTable | None = None
        self._kernel: Kernel | None = None

    def install(self, *, old_kernel: bool, room: int | None) -> None:
        """Install the observers before the mount starts."""
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
    """Make the kernel answer INC_EPOCH like any unknown code."""
    send = Kernel._send

    def sent(kernel: Kernel, code: int, payload: bytes) -> bool:
        return send(kernel, UNKNOWN if code == NOTIFY_INC_EPOCH else code, payload)

    replace(Kernel, "_send", sent)


def hold_lookups(held: HeldLookup) -> None:
    """Stop the LOOKUP that a test wants to stop."""
    lookup: Method = Operations.lookup

    @functools.wraps(lookup)
    async def stopping(operations: Operations, *args: object) -> object:
        name = args[1]
        assert isinstance(name, bytes)
        await held.stop(name)
        return await lookup(operations, *args)

    replace(Operations, "lookup", stopping)


def replace(owner: object, name: str, thing: object) -> None:
    """Replace an attribute of the product."""
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
