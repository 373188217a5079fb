"""The expected content of a directory of a drive after a crash, recorded outside of the drive.

One writer works in the directory. It records each call before it starts and after its answer. After
the crash, `verify` checks that acknowledged changes exist, and that a change in flight happened
entirely or not at all. It also checks that the directory contains nothing else.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Record:
    """One file: its bytes after each call since the last durable state."""

    history: list[bytes]

    @property
    def latest(self) -> bytes:
        """Return the bytes that the writer sees."""
        return self.history[-1]

    def becomes(self, data: bytes) -> None:
        """Record the result of a call before the call changes the bytes."""
        self.history.append(data)

    def mark(self) -> int:
        """Return the present position in the history, for `safe`."""
        return len(self.history)

    def safe(self, mark: int) -> None:
        """Record the answer of a call that makes all changes before `mark` durable."""
        del self.history[: mark - 1]


@dataclass
class Ledger:
    """The files of one directory by name.

    A call in flight that changes names leaves either `files` or `maybe`.
    """

    files: dict[str, Record] = field(default_factory=dict)
    maybe: dict[str, Record] | None = None

    @contextmanager
    def naming(self, after: dict[str, Record]) -> Iterator[None]:
        """Record a call that changes names; after its answer, `after` holds the files."""
        self.maybe = after
        yield
        self.files, self.maybe = after, None

    def verify(self, directory: Path) -> list[str]:
        """Return the faults of the directory, one a line.

        The actual content then becomes the record.
        """
        present = set(os.listdir(directory))
        candidates = [names for names in (self.files, self.maybe) if names is not None]
        names = next((names for names in candidates if set(names) == present), None)
        if names is None:
            return [f"{directory.name}: names {sorted(present)}, not {sorted(self.files)}"]
        wrong = []
        found: dict[int, Record] = {}
        for name, record in names.items():
            data = (directory / name).read_bytes()
            if not any(data in names[name].history for names in candidates if name in names):
                wrong.append(f"{directory.name}/{name}: {describe(data, record)}")
            found.setdefault(id(record), Record([data]))
        self.files = {name: found[id(record)] for name, record in names.items()}
        self.maybe = None
        return wrong


def describe(data: bytes, record: Record) -> str:
    """Describe how bytes differ from all permitted states."""
    wanted = ", ".join(f"{_name(one)} ({_differences(one, data)})" for one in record.history)
    return f"{_name(data)}, not one of: {wanted}"


def _name(data: bytes) -> str:
    return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:8]}"


def _differences(one: bytes, other: bytes) -> str:
    places = [n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    if not places:
        return "the shorter one is the beginning of the longer one"
    first, last = places[0], places[-1]
    there, here = one[first : first + 16], other[first : first + 16]
    return f"differs in [{first}, {last}]: {here!r} for {there!r}"
