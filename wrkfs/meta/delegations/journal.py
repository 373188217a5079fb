"""The journal of a session: its answered and unsent changes, in files on the host's disk.

A journal outlives the mount process, but not a power failure: it is written, not synced. One
directory belongs to one registration of a session. It has a file `session` that names the session,
and one file for each batch. The next mount on the host replays what a dead process left
(`replay`).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import struct
import zlib
from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING

import msgpack

from wrkfs.meta.rules import EXTENTS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from wrkfs.meta.delegations.delta import Record
    from wrkfs.types import SessionId

FORMAT = 1
"""Version of the format; another version is not replayed."""
RECORD_MAX = 16 << 20
"""Maximum size of an entry in bytes."""
RECORDS_MAX = EXTENTS_MAX + 16
"""Maximum number of records in an entry: a change has extents, inodes and names."""
FIELDS_MAX = 32
"""Maximum number of values in a record."""
SEGMENT_MAX = 256 << 20
"""Maximum size of the file of a batch: several times what `flusher.FULL` allows."""
_HEAD = struct.Struct("=II")
OWNER_FILE = "session"
"""Name of the file that names the session; it is locked while the process runs."""
_LOST = "lost-"
_SEGMENT = re.compile("[0-9]{16}")


@dataclass(frozen=True, slots=True)
class Owner:
    """The session that wrote a journal: the schema of its volume, its number and epoch."""

    schema: str
    session: SessionId
    epoch: int
    format: int = FORMAT


class Journal:
    """The open journal of this session.

    Critical section: none, no method waits. A failed `append` leaves the file as it was, or raises
    on every later call.
    """

    def __init__(self, root: Path, owner: Owner) -> None:
        """Create the journal below `root`. Raises OSError."""
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = root / f"{owner.schema}-{owner.session}"
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.mkdir(mode=0o700)
        self._lock = os.open(self._path / OWNER_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, json.dumps(asdict(owner)).encode())
        self._number = 0
        self._file = -1
        self._size = 0
        self._broken = False
        self.begin(1)

    def begin(self, number: int) -> None:
        """Start the file of batch `number`; later entries belong to it. Raises OSError."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._number, self._size = number, 0
        self._file = os.open(self._segment(number), flags, 0o600)

    def append(self, records: Sequence[Record]) -> None:
        """Write the records of one change. Raises OSError, for example on a full disk."""
        if self._broken or self._file < 0:
            raise OSError("the journal is closed, or an earlier write to it failed")
        body: bytes = msgpack.packb(records)
        if len(body) > RECORD_MAX or self._size > SEGMENT_MAX - RECORD_MAX - _HEAD.size:
            raise OSError("the change is too large for the journal")
        entry = _HEAD.pack(len(body), zlib.crc32(body)) + body
        written = 0
        try:
            written = os.write(self._file, entry)
        finally:
            if written != len(entry):
                self._broken = True
                os.ftruncate(self._file, self._size)
                self._broken = False
        if written != len(entry):
            raise OSError("the disk of the journal is full")
        self._size += written

    def drop(self, number: int) -> None:
        """Delete the file of a batch that the database has applied."""
        self._segment(number).unlink(missing_ok=True)

    def keep_lost(self) -> Path | None:
        """Keep the entries, which will not be applied, for the operator; return their directory.

        Raises OSError, for example on a full disk.
        """
        target = _free_name(self._path)
        segments = [path for path in self._path.iterdir() if path.name != OWNER_FILE]
        if not any(path.stat().st_size for path in segments):
            return None
        shutil.copytree(self._path, target)
        return target

    def close(self, *, keep: bool = False) -> None:
        """Close the journal, and delete it unless `keep`. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._lock >= 0:
            if not keep:
                shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _segment(self, number: int) -> Path:
        return self._path / f"{number:016d}"


class LeftJournal:
    """The journal of a dead process. The caller holds its lock until `close`."""

    def __init__(self, path: Path, owner: Owner, lock: int) -> None:
        self.owner = owner
        self.path = path
        self._lock = lock

    def batches(self) -> Iterator[tuple[int, list[Record]]]:
        """Yield numbers and records of the batches, in order; stops at the first torn entry.

        Raises OSError, and ValueError for entries that no mount writes.
        """
        for path in segments_of(self.path):
            records, whole = read_entries(path)
            yield int(path.name), records
            if not whole:
                return

    def release(self) -> None:
        """Let another process replay the journal. Idempotent; also done by `close`."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def close(self, *, lost: bool) -> Path | None:
        """Delete the journal, or keep it for the operator if it is `lost`; return its new place."""
        target = None
        if lost:
            target = _free_name(self.path)
            self.path.rename(target)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        self.release()
        return target


def segments_of(path: Path) -> list[Path]:
    """Return the files of the batches of a journal, in order. Raises OSError."""
    return sorted(file for file in path.iterdir() if _SEGMENT.fullmatch(file.name))


def read_entries(path: Path) -> tuple[list[Record], bool]:
    """Return the records of a file, and False if a torn entry ends it. Raises as `read_changes`."""
    changes, whole = read_changes(path)
    return [record for records in changes for record in records], whole


def read_changes(path: Path) -> tuple[list[list[Record]], bool]:
    """Return the records of each change in a file, and False if a torn entry ends it.

    Raises OSError, and ValueError if the file has entries that no mount writes.
    """
    changes: list[list[Record]] = []
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > SEGMENT_MAX:
            raise ValueError(f"{path.name} is larger than {SEGMENT_MAX} bytes")
        while head := file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                return changes, False
            length, checksum = _HEAD.unpack(head)
            body = file.read(length) if length <= RECORD_MAX else b""
            if len(body) < length or zlib.crc32(body) != checksum or not length:
                return changes, False
            changes.append(_unpacked(body))
    return changes, True


def _unpacked(body: bytes) -> list[Record]:
    """Return the records of an entry. The memory that this takes is bounded, whatever it says."""
    unpacker = _Unpacker()
    try:
        records = msgpack.unpackb(
            body,
            list_hook=unpacker.take,
            max_array_len=RECORDS_MAX,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"an entry is malformed: {error}") from None
    if not isinstance(records, list):
        raise ValueError("an entry is malformed: it is no list of records")
    return records


class _Unpacker:
    """Accepts one list of records; a record is a list of values."""

    def __init__(self) -> None:
        self._count = 0
        self._complete = False

    def take(self, values: list[object]) -> object:
        """Return a record as a tuple, and the list of records as it is."""
        if self._complete:
            raise ValueError("more than one list of records")
        if values and not isinstance(values[0], tuple):
            self._count += 1
            if self._count > RECORDS_MAX or len(values) > FIELDS_MAX:
                raise ValueError("too many records, or too many values in one")
            if any(isinstance(value, tuple) for value in values):
                raise ValueError("a record in a record")
            return tuple(values)
        self._complete = True
        if not all(isinstance(value, tuple) for value in values):
            raise ValueError("a value outside of a record")
        return values


def left_journals(root: Path, schema: str) -> Iterator[LeftJournal]:
    """Yield the journals of a volume whose processes are dead; other ones are left alone."""
    if not root.is_dir():
        return
    for path in sorted(root.glob(f"{schema}-*")):
        try:
            lock = os.open(path / OWNER_FILE, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner = read_owner(os.pread(lock, 4096, 0))
        except (OSError, ValueError, TypeError):
            os.close(lock)
            continue
        if owner.format != FORMAT or owner.schema != schema:
            os.close(lock)
            continue
        yield LeftJournal(path, owner, lock)


def read_owner(text: bytes) -> Owner:
    """Return the session that a journal names. Raises ValueError, TypeError."""
    owner = Owner(**json.loads(text))
    for number in (owner.session, owner.epoch, owner.format):
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise ValueError("the journal names no session")
    return owner


def _free_name(path: Path) -> Path:
    """Return a new name for what a journal lost; a session may lose changes more than once."""
    names = (f"{_LOST}{path.name}{suffix}" for suffix in _suffixes())
    return next(place for name in names if not (place := path.with_name(name)).exists())


def _suffixes() -> Iterator[str]:
    yield ""
    yield from (f".{number}" for number in count(2))
