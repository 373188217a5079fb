"""The mount process that can be looked into: `python -m tests.harness.watched_mount`.

Beside the options of `box_guest.mount`: `--old-kernel` lets the kernel answer as one does that has
no FUSE_NOTIFY_INC_EPOCH (before Linux 6.16); `--room N` bounds what is kept by leases. When it is
asked, by a signal, it tells what it has done and what it keeps: see `Told`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyfuse3

from box_guest.mount.__main__ import main
from box_guest.mount.kernel import NOTIFY_INC_EPOCH, Kernel
from box_guest.mount.operations import Operations
from tests.harness.drive import MountProcess, until
from wrkfs.meta.keeping import LeaseKeeping
from wrkfs.meta.leased import LeasedMeta
from wrkfs.meta.links import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from wrkfs.config import VolumeConfig

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
    """What is kept at this moment, as `keeping.ROOM` counts, in all leased directories."""
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


class WatchedMount(MountProcess):
    """Such a process, and what it tells."""

    PROGRAM = "tests.harness.watched_mount"

    def __init__(self, config: VolumeConfig, directory: Path, *options: str) -> None:
        """`options`: of `box_guest.mount`, and those of the module."""
        self._answer = directory / "told"
        super().__init__(config, directory, "--told", str(self._answer), *options)

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
        self._keeping: LeaseKeeping | None = None
        self._kernel: Kernel | None = None

    def install(self, *, old_kernel: bool, room: int | None) -> None:
        """Before the mount begins."""
        for name in dir(pyfuse3.Operations):
            if asyncio.iscoroutinefunction(getattr(Operations, name)):
                self._around(Operations, name, self._request(name))
        self._around(Link, "fetch", lambda args: self._told.trips.update([str(args[1])]))
        self._around(LeaseKeeping, "start", self._started)
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
        assert isinstance(found, LeaseKeeping)
        self._keeping = found
        asyncio.get_running_loop().add_signal_handler(ASK, self._tell)

    def _look(self) -> None:
        told = self._told
        if self._keeping is not None:
            told.kept = sum(map(len, self._keeping._kept.values()))
            told.most = max(told.most, told.kept)

    def _tell(self) -> None:
        self._look()
        told = self._told
        assert self._keeping is not None
        told.leased, told.homes = len(self._keeping._kept), len(self._keeping._homes)
        told.names = sum(len(kept.names) for kept in self._keeping._kept.values())
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


def replace(owner: object, name: str, thing: object) -> None:
    """Puts something in the place of what the product has there."""
    assert hasattr(owner, name), name
    setattr(owner, name, thing)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--told", type=Path, required=True)
    parser.add_argument("--old-kernel", action="store_true")
    parser.add_argument("--room", type=int)
    arguments, sys.argv[1:] = parser.parse_known_args()
    Watch(arguments.told).install(old_kernel=arguments.old_kernel, room=arguments.room)
    sys.exit(main())
