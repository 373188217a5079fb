"""Lists and describes journals for the operator: those of mounts, and what sessions lost."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from wrkfs.meta.delegations import delta
from wrkfs.meta.delegations.journal import (
    OWNER_FILE,
    OWNER_MAX,
    opened,
    read_changes,
    read_owner,
    segments_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wrkfs.meta.delegations.delta import Record
    from wrkfs.meta.delegations.journal import Owner

    Show: TypeAlias = Callable[[bytes], str]
    """Returns bytes of programs, such as names, as text that is safe for a terminal."""

LOCKS = Path("/proc/locks")
JOURNALS_MAX = 1000
"""Maximum number of journals in a list."""
NAMES_MAX = 3
"""Maximum number of names of a journal in a list."""
_VALUE_MAX = 40
"""Maximum length of a value in a description."""
IN_USE, WAITING, LOST = "in use", "waits for a mount", "lost"


@dataclass(frozen=True, slots=True)
class KeptJournal:
    """One journal. `owner` is None if the journal does not name its session."""

    path: Path
    owner: Owner | None
    state: str
    """`IN_USE`, `WAITING` for its replay, or `LOST`."""
    written: float
    """Time of the last change, in seconds since the epoch."""
    changes: int
    """Number of changes that can be read."""
    names: tuple[bytes, ...]
    """The first names in the journal."""
    fault: str
    """Why not all can be read; an empty string if all can."""


def kept_journals(root: Path) -> list[KeptJournal]:
    """Return the journals below a directory, the oldest first. Raises OSError."""
    if not root.is_dir():
        return []
    locks = _locked_files()
    paths = sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted((_kept(path, locks) for path in paths[:JOURNALS_MAX]), key=lambda j: j.written)


def described(path: Path, show: Show) -> Iterator[str]:
    """Yield a line for each record of a journal. Raises OSError."""
    for segment in segments_of(path):
        try:
            changes, whole = read_changes(segment)
        except ValueError as error:
            yield f"batch {int(segment.name)}: {error}"
            return
        for records in changes:
            for record in records:
                yield _line(record, show)
        if not whole:
            yield f"batch {int(segment.name)}: the last change is incomplete"


def _kept(path: Path, locks: set[tuple[int, int, int]]) -> KeptJournal:
    state = LOST if path.name.startswith("lost-") else WAITING
    owner, written, count, fault = None, 0.0, 0, ""
    names: dict[bytes, None] = {}
    try:
        written = path.stat().st_mtime
        if state == WAITING and _place(path / OWNER_FILE) in locks:
            state = IN_USE
        owner, fault = _owner(path)
        for segment in segments_of(path):
            written = max(written, segment.stat().st_mtime)
            changes, whole = read_changes(segment)
            fault = fault if whole or state == IN_USE else "the last change is incomplete"
            count += len(changes)
            for records in changes:
                names.update(dict.fromkeys(_names(records, NAMES_MAX - len(names))))
    except FileNotFoundError as error:
        # The mount deletes the files of batches that the database has.
        fault = "" if state == IN_USE else str(error.strerror)
    except (OSError, ValueError, TypeError) as error:
        fault = str(error)
    return KeptJournal(path, owner, state, written, count, tuple(names), fault)


def _place(path: Path) -> tuple[int, int, int] | None:
    """Return device and inode of a file, as `_locked_files` does; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return os.major(status.st_dev), os.minor(status.st_dev), status.st_ino


def _owner(path: Path) -> tuple[Owner | None, str]:
    """Return the owner of a journal, or None and why it cannot be read."""
    try:
        with opened(path / OWNER_FILE) as file:
            return read_owner(file.read(OWNER_MAX)), ""
    except OSError as error:
        return None, str(error.strerror)
    except (ValueError, TypeError) as error:
        return None, str(error)


def _names(records: list[Record], most: int) -> list[bytes]:
    entries = (record for record in records if record[0] in {delta.PUT, delta.CUT})
    names = [record[2] for record in entries if len(record) > 2 and isinstance(record[2], bytes)]
    return names[: max(most, 0)]


def _locked_files() -> set[tuple[int, int, int]]:
    """Return device and inode of the files with a flock. To try the lock would hinder a replay."""
    locks = set()
    for line in LOCKS.read_text().splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK":
            major, minor, inode = words[5].split(":")
            locks.add((int(major, 16), int(minor, 16), int(inode)))
    return locks


def _line(record: Record, show: Show) -> str:
    """Describe one record; its values may be anything."""
    kind, *values = record
    texts = [
        show(value) if isinstance(value, bytes) else ascii(value)[:_VALUE_MAX] for value in values
    ]
    try:
        if kind == delta.INODE:
            mode = int(values[2])
            return f"inode {texts[1]}: mode {mode:o}, links {texts[3]}, size {texts[7]}"
        if kind == delta.PUT:
            return f"name {texts[1]} in directory {texts[0]}: inode {texts[2]}"
        if kind == delta.CUT:
            return f"name {texts[1]} in directory {texts[0]}: removed"
        if kind == delta.LINK:
            return f"inode {texts[0]}: symbolic link to {texts[1]}"
        if kind == delta.EXTENT:
            where = f"slice {texts[2]}" if values[5] is None else "in the journal"
            return f"inode {texts[0]}: {texts[3]} bytes at {texts[1]}, {where}"
        if kind == delta.EMPTIED:
            return f"inode {texts[0]}: truncated to 0 bytes"
        if kind == delta.GONE:
            return f"inode {texts[0]}: removed"
    except (IndexError, ValueError, TypeError):
        pass
    return f"unknown record with {len(values)} values"
