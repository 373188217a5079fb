"""The journal of a session: its answered and unsent changes, in files on the host's disk.

A journal outlives the mount process, but not a power failure: it is written, not synced. One
directory belongs to one registration of a session. It has a file `session` that names the session,
and one file for each batch. The next mount on the host replays what a dead process left
(`replay`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import stat
import struct
import zlib
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, BinaryIO

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
OWNER_MAX = 4096
_LOST = "lost-"
_SPARE = "spare"
"""Name of the empty file that the next batch uses."""
NAMELESS = "it names no session"
_AFTER = "after"
"""Kind of the first record of a file: the batch that its batch depends on."""
_SEGMENT = re.compile("[0-9]{16}")
_NAME = re.compile("[A-Za-z0-9_]{0,63}")
"""A schema or a channel."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The session that wrote a journal: the schema of its volume, its number and epoch."""

    schema: str
    session: SessionId
    epoch: int
    format: int = FORMAT
    channel: str = ""
    """Random name of the session. A volume that was restored from a backup uses numbers again."""


class Journal:
    """The open journal of this session.

    Critical section: none, no method waits. A failed `append` leaves the file as it was, or raises
    until the database has applied the batch.
    """

    def __init__(self, root: Path, owner: Owner, first: int = 1) -> None:
        """Create the journal below `root`, with the file of batch `first`. Raises OSError."""
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = root / f"{owner.schema}-{owner.session}"
        if self._path.exists():
            self._path.rename(_free_name(self._path))
        self._number = self._after = self._size = self._after_size = 0
        self._file = self._lock = -1
        self._has_spare = False
        """True if there is an empty file for the next batch."""
        self._broken: int | None = None
        """The batch whose file ends with an incomplete entry that could not be removed."""
        self._path.mkdir(mode=0o700)
        try:
            self._write_owner(owner)
            self.begin(first, after=0)
        except BaseException:
            self.close()
            _delete(self._path)
            raise

    def _write_owner(self, owner: Owner) -> None:
        # Another mount that looks for journals finds the name only with its content and its lock.
        new = self._path / f"{OWNER_FILE}.new"
        text = json.dumps(asdict(owner)).encode()
        self._lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if os.write(self._lock, text) != len(text):
            raise OSError(errno.ENOSPC, "the disk of the journal is full")
        new.rename(self._path / OWNER_FILE)

    def begin(self, number: int, *, after: int | None = None) -> None:
        """Start the file of batch `number`; later entries belong to it. Raises OSError.

        The batch depends on batch `after`: by default on the last one with entries. If the file
        cannot be created, the next `append` tries again.
        """
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if after is not None:
            self._after, self._after_size = after, 0
        elif self._size:
            self._after, self._after_size = self._number, self._size
        self._number, self._size = number, 0
        self._open()

    def _open(self) -> None:
        if self._has_spare:
            self._has_spare = False
            with suppress(FileNotFoundError):
                (self._path / _SPARE).rename(self._segment(self._number))
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._segment(self._number), flags, 0o600)

    def append(self, records: Sequence[Record]) -> None:
        """Write the records of one change. Raises OSError, for example on a full disk."""
        if self._broken is not None or self._lock < 0:
            raise OSError("the journal is closed, or an earlier write to it failed")
        if self._file < 0:
            self._open()
        entry = _entry(records)
        if not self._size:
            entry = _entry([(_AFTER, self._after, self._after_size)]) + entry
        if self._size > SEGMENT_MAX - len(entry):
            raise OSError("the batch is too large for the journal")
        written = 0
        try:
            written = os.write(self._file, entry)
        finally:
            if written != len(entry):
                self._broken = self._number
                os.ftruncate(self._file, self._size)
                self._broken = None
        if written != len(entry):
            raise OSError("the disk of the journal is full")
        self._size += written

    def drop(self, number: int) -> None:
        """Remove the file of a batch that the database has applied.

        The next batch uses it again: ext4 searches longer for a new inode for each one that was
        deleted in the last 5 s, which took more than half of the time of an fsync (*measured*).
        """
        segment, spare = self._segment(number), self._path / _SPARE
        # The name goes first: a replay would take an empty file for one that was cut.
        if self._has_spare:
            segment.unlink(missing_ok=True)
        else:
            with suppress(FileNotFoundError):
                segment.rename(spare)
                os.truncate(spare, 0)
                self._has_spare = True
        if self._broken == number:
            self._broken = None

    def keep_lost(self) -> Path | None:
        """Keep the entries, which will not be applied, for the operator; return their directory.

        Raises OSError, for example on a full disk.
        """
        target = _free_name(self._path)
        if not _has_entries(self._path):
            return None
        shutil.copytree(self._path, target, ignore=shutil.ignore_patterns(_SPARE))
        return target

    def close(self, *, keep: bool = False) -> None:
        """Close the journal, and delete it unless `keep`. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._lock >= 0:
            if not keep:
                _delete(self._path)
            os.close(self._lock)
            self._lock = -1

    def _segment(self, number: int) -> Path:
        return self._path / f"{number:016d}"


@dataclass(frozen=True, slots=True)
class LeftBatch:
    """The file of one batch in the journal of a dead process."""

    number: int
    after: int
    """The batch that this one depends on."""
    records: list[Record]
    is_whole: bool
    """False if an incomplete entry ends the file."""
    fits: bool
    """False if the journal has the batch that this one depends on, and its file was cut."""


class LeftJournal:
    """The journal of a dead process. The caller holds its lock until `close`."""

    def __init__(self, path: Path, owner: Owner | None, lock: int, fault: str = "") -> None:
        self.owner = owner
        self.path = path
        self.fault = fault
        """Why the journal cannot be replayed; an empty string if it can."""
        self.applied: set[int] = set()
        """Batches that the database has; they are not among what a lost journal keeps."""
        self._lock = lock

    def has_entries(self) -> bool:
        """Return True if the journal has changes, or parts of them."""
        return _has_entries(self.path)

    def batches(self) -> Iterator[LeftBatch]:
        """Yield the batches in order. Raises OSError, and ValueError for malformed entries."""
        sizes: dict[int, int] = {}
        for path in segments_of(self.path):
            number = int(path.name)
            sizes[number] = path.stat().st_size
            records, is_whole = read_entries(path)
            after, size = read_after(path)
            yield LeftBatch(number, after, records, is_whole, sizes.get(after, size) == size)

    def release(self) -> None:
        """Let another process replay the journal. Idempotent; also done by `close`."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def close(self, *, lost: bool) -> Path | None:
        """Delete the journal, or keep it for the operator if it is `lost`; return its new place.

        Raises OSError if it cannot be kept.
        """
        target = None
        if lost:
            for number in self.applied:
                (self.path / f"{number:016d}").unlink(missing_ok=True)
            target = _free_name(self.path)
            self.path.rename(target)
        else:
            _delete(self.path)
        self.release()
        return target


def _entry(records: Sequence[Record]) -> bytes:
    """Return an entry of the file of a batch. Raises OSError if no replay would read it."""
    body: bytes = msgpack.packb(records)
    if len(body) > RECORD_MAX:
        raise OSError("the change is too large for the journal")
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _delete(path: Path) -> None:
    """Delete a journal, the file of its owner last: without it, entries count as damaged."""
    for file in path.glob("[0-9]*"):
        with suppress(OSError):
            file.unlink()
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file of a journal for reading. Raises OSError, and ValueError if it is no file.

    A mount process that somebody took over may put a link, or a pipe without a writer, there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path.name} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


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
    entries, is_whole = _read(path)
    return entries[1:], is_whole


def read_after(path: Path) -> tuple[int, int]:
    """Return the batch that the batch of a file depends on, and the size of that batch's file.

    Raises as `read_changes`.
    """
    entries, _ = _read(path, most=1)
    _, number, size = entries[0][0] if entries else (_AFTER, 0, 0)
    return int(number), int(size)


def _read(path: Path, most: int | None = None) -> tuple[list[list[Record]], bool]:
    """Return the first entries of a file, and False if one of them is torn."""
    entries: list[list[Record]] = []
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > SEGMENT_MAX:
            raise ValueError(f"{path.name} is larger than {SEGMENT_MAX} bytes")
        while (most is None or len(entries) < most) and (head := file.read(_HEAD.size)):
            if len(head) < _HEAD.size:
                return entries, False
            length, checksum = _HEAD.unpack(head)
            body = file.read(length) if length <= RECORD_MAX else b""
            if len(body) < length or zlib.crc32(body) != checksum or not length:
                return entries, False
            entries.append(_unpacked(body))
            if len(entries) == 1:
                _check_first(entries[0])
    return entries, True


def _check_first(records: list[Record]) -> None:
    """Raise ValueError if these records are not the first entry of a file."""
    match records:
        case [("after", int(number), int(size))] if min(number, size) >= 0:
            return
    raise ValueError("the first entry is malformed: it names no batch")


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


def left_journals(root: Path, schema: str) -> tuple[list[LeftJournal], set[SessionId]]:
    """Return the journals of a volume whose processes are dead, and the sessions of the others.

    The others are in use, or another process replays them.
    """
    journals: list[LeftJournal] = []
    busy: set[SessionId] = set()
    for path in sorted(root.glob(f"{schema}-*")):
        try:
            lock = os.open(path / OWNER_FILE, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and _has_entries(path):
                journals.append(LeftJournal(path, None, -1, NAMELESS))
            continue
        owner, fault = _owner_of(lock, path.name, schema)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that had the lock may have deleted or moved the journal.
            is_there = os.path.samestat(os.fstat(lock), (path / OWNER_FILE).stat())
        except OSError:
            busy.update(() if owner is None else (owner.session,))
            is_there = False
        if is_there:
            journals.append(LeftJournal(path, owner, lock, fault))
        else:
            os.close(lock)
    return journals, busy


def _has_entries(path: Path) -> bool:
    try:
        return any(file.stat().st_size for file in segments_of(path))
    except OSError:
        return False


def _owner_of(file: int, name: str, schema: str) -> tuple[Owner | None, str]:
    """Return the owner of a journal, and why it cannot be replayed; an empty string if it can."""
    try:
        text = os.pread(file, OWNER_MAX, 0)
        other = _object(text)["format"]
        if other != FORMAT:
            return None, f"it has format {ascii(other)[:20]}, and this release reads {FORMAT}"
        owner = read_owner(text)
    except (OSError, ValueError, TypeError, KeyError):
        return None, NAMELESS
    if name != f"{schema}-{owner.session}" or owner.schema != schema:
        return owner, "it belongs to another volume or session"
    return owner, ""


def read_owner(text: bytes) -> Owner:
    """Return the session that a journal names. Raises ValueError, TypeError."""
    owner = Owner(**_object(text))
    for name in (owner.schema, owner.channel):
        if type(name) is not str or not _NAME.fullmatch(name):
            raise ValueError("the journal names no session")
    for number in (owner.session, owner.epoch, owner.format):
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise ValueError("the journal names no session")
    return owner


def _object(text: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError, also for one that is too deep."""
    try:
        value = json.loads(text)
    except (RecursionError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("the journal names no session")
    return value


def _free_name(path: Path) -> Path:
    """Return a new name for what a journal lost; a session may lose changes more than once."""
    names = (f"{_LOST}{path.name}{suffix}" for suffix in _suffixes())
    return next(place for name in names if not (place := path.with_name(name)).exists())


def _suffixes() -> Iterator[str]:
    yield ""
    yield from (f".{number}" for number in count(2))
