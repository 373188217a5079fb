"""What must be in a directory of a drive after a crash, kept outside of the drive.

One writer works in the directory and notes each call here, before it and after its answer. After
the crash `verify` says whether what was acknowledged is there, whether what was in flight is there
or not, and that nothing else is.
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
    """One file: what its bytes were after each call, from the last safe one on."""

    history: list[bytes]

    @property
    def latest(self) -> bytes:
        """Its bytes as the writer sees them."""
        return self.history[-1]

    def becomes(self, data: bytes) -> None:
        """A call that changes the bytes is about to be made."""
        self.history.append(data)

    def mark(self) -> int:
        """Where the history stands: for `safe`."""
        return len(self.history)

    def safe(self, mark: int) -> None:
        """A call was answered that makes safe all that came before `mark`."""
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
        """A call that changes names; when it is answered `after` is what there is."""
        self.maybe = after
        yield
        self.files, self.maybe = after, None

    def verify(self, directory: Path) -> list[str]:
        """What is wrong with the directory, one line each; what was found is the truth then."""
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
    """How bytes differ from all that they may be."""
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
