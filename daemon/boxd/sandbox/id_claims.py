"""Ranges of the host's user and group ids that installations claim.

Distributions assign lower ids to users and containers. A directory that a reboot clears has one
file for each claimed block, so two services on one host never share ids. An installation records
its blocks in its state directory and claims the same ones again.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = 1 << 30
"""The lowest id of the boxes' blocks."""
CLAIMS = Path("/run/boxd-ids")
ASSIGNMENTS = (Path("/etc/subuid"), Path("/etc/subgid"))
"""Files in which the host assigns ranges to other programs: lines of name, first id and count."""
RUNNING = Path("/run")
"""The parent of `boxd-INSTANCE`, which exists while an installation is in use."""


class IdClaims:
    """Claims of one installation. All calls block for a short time."""

    def __init__(
        self,
        instance: str,
        directory: Path = CLAIMS,
        assignments: tuple[Path, ...] = ASSIGNMENTS,
        running: Path = RUNNING,
    ) -> None:
        """`running` has a directory for each installation that is in use."""
        self._instance = instance
        self._directory = directory
        self._assignments = assignments
        self._running = running

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other installations. Hold this around `claim` and `release`."""
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def claim(self, name: str, first: int, count: int) -> bool:
        """Claim ids; return False if another installation has them, or the host uses them.

        The same `name` always means the same ids.
        """
        if self._is_assigned(first, first + count):
            return False
        place = self._directory / name
        owner = read_or_empty(place)
        if owner and owner != self._instance and (self._running / f"boxd-{owner}").exists():
            return False
        place.write_text(self._instance)
        return True

    def release(self, name: str) -> None:
        """Give ids back. No error if another installation has them."""
        if read_or_empty(self._directory / name) == self._instance:
            (self._directory / name).unlink(missing_ok=True)

    def _is_assigned(self, first: int, last: int) -> bool:
        for file in self._assignments:
            for line in read_or_empty(file).splitlines():
                words = line.split(":")
                if len(words) == 3 and words[1].isdecimal() and words[2].isdecimal():
                    start, count = int(words[1]), int(words[2])
                    if start < last and first < start + count:
                        return True
        return False


def record(file: Path, numbers: list[int]) -> None:
    """Write the numbers of claimed blocks to a file of the state directory."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_suffix(".new")
    temporary.write_text(" ".join(map(str, numbers)) + "\n")
    temporary.replace(file)


def recorded(file: Path) -> list[int]:
    """Return the numbers that `record` wrote; [] without a file."""
    return [int(word) for word in read_or_empty(file).split() if word.isdecimal()]


def read_or_empty(file: Path) -> str:
    """Return the text of a file, or an empty string if it does not exist."""
    with suppress(FileNotFoundError):
        return file.read_text(errors="replace")
    return ""
