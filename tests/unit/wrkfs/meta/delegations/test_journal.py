"""The journal survives its process, and a torn or foreign one is recognised."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import tracemalloc
import zlib
from functools import partial
from typing import TYPE_CHECKING

import msgpack
import pytest

from tests.harness.logs import provoked
from wrkfs.meta.delegations import journal as module
from wrkfs.meta.delegations.journal import (
    FORMAT,
    NAMELESS,
    OWNER_FILE,
    RECORD_MAX,
    RECORDS_MAX,
    SEGMENT_MAX,
    Journal,
    Owner,
    left_journals,
    read_changes,
    read_entries,
    segments_of,
)
from wrkfs.types import SessionId

if TYPE_CHECKING:
    from pathlib import Path

    from wrkfs.meta.delegations.delta import Record
    from wrkfs.meta.delegations.journal import LeftJournal

OWNER = Owner("v1", SessionId(3), 1)
FIRST: list[Record] = [("-", 1, b"a"), ("l", 2, b"\xff\0")]
SECOND: list[Record] = [("-", 1, b"b")]
AFTER_SIZE = 8 + len(msgpack.packb([("after", 0, 0)]))
"""Size of the first entry of a file, which names a batch."""


def left(root: Path, schema: str = "v1") -> list[LeftJournal]:
    """Return the journals that dead processes left."""
    return left_journals(root, schema)[0]


def batches(journal: LeftJournal) -> list[tuple[int, list[Record]]]:
    """Return numbers and records of the batches."""
    return [(batch.number, batch.records) for batch in journal.batches()]


def abandoned(root: Path) -> Path:
    """Write a journal with two batches as a killed process leaves it; return its directory."""
    journal = Journal(root, OWNER)
    journal.append(FIRST)
    journal.begin(2)
    journal.append(SECOND)
    journal.close(keep=True)
    return root / "v1-3"


def test_batches_are_read_in_order(tmp_path: Path) -> None:
    abandoned(tmp_path)
    (found,) = left(tmp_path)
    assert found.owner == OWNER
    assert batches(found) == [(1, FIRST), (2, SECOND)]
    assert [batch.after for batch in found.batches()] == [0, 1]
    assert found.close(lost=False) is None
    assert list(tmp_path.iterdir()) == []


def test_an_applied_batch_is_deleted(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    journal.append(FIRST)
    journal.begin(2)
    journal.drop(1)
    journal.append(SECOND)
    journal.close(keep=True)
    (found,) = left(tmp_path)
    assert batches(found) == [(2, SECOND)]
    found.close(lost=False)


def test_a_closed_journal_leaves_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    journal.append(FIRST)
    journal.close()
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_lost_changes_stay_for_the_operator(tmp_path: Path) -> None:
    abandoned(tmp_path)
    (found,) = left(tmp_path)
    place = found.close(lost=True)
    assert place == tmp_path / "lost-v1-3"
    assert read_entries(place / f"{1:016d}") == (FIRST, True)
    assert left(tmp_path) == []


def test_the_journal_of_a_running_process_is_left_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    assert left_journals(tmp_path, "v1") == ([], {3})
    journal.close()


def test_journals_of_other_volumes_are_left_alone(tmp_path: Path) -> None:
    abandoned(tmp_path)
    assert left(tmp_path, "v2") == []


@pytest.mark.parametrize(("field", "value"), [("schema", "v2"), ("session", 4)])
def test_a_journal_of_another_owner_is_not_replayed(
    tmp_path: Path, field: str, value: object
) -> None:
    path = abandoned(tmp_path)
    owner = json.loads((path / "session").read_text())
    (path / "session").write_text(json.dumps({**owner, field: value}))
    (found,) = left(tmp_path)
    assert "another volume or session" in found.fault
    found.close(lost=True)


def test_a_journal_whose_owner_is_missing_is_not_replayed(tmp_path: Path) -> None:
    path = abandoned(tmp_path)
    (path / "session").unlink()
    (found,) = left(tmp_path)
    assert found.fault == NAMELESS
    assert found.close(lost=True) == tmp_path / "lost-v1-3"
    # A mount that starts has no entries yet.
    (tmp_path / "v1-4").mkdir()
    assert left(tmp_path) == []


def test_a_journal_that_another_process_finishes_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned(tmp_path)
    (first,) = left(tmp_path)
    flock = fcntl.flock

    def lock(file: int, operation: int) -> None:
        first.close(lost=False)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    assert left(tmp_path) == []


def test_a_new_session_with_an_old_number_keeps_the_old_journal(tmp_path: Path) -> None:
    """The volume may have been restored from a backup."""
    abandoned(tmp_path)
    with provoked("wrkfs.meta.delegations.journal"):
        journal = Journal(tmp_path, OWNER)
    journal.append(SECOND)
    journal.close(keep=True)
    assert read_entries(tmp_path / "lost-v1-3" / f"{1:016d}") == (FIRST, True)
    assert read_entries(tmp_path / "v1-3" / f"{1:016d}") == (SECOND, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": "v1"}',
        "[" * 4000,
        '{"a":' * 600,
        '{"schema": "v1", "session": "3", "epoch": 1, "format": 1}',
        '{"schema": "v1", "session": 3, "epoch": 1, "format": 1, "channel": 7}',
        '{"schema": "v1", "session": 3, "epoch": 1, "format": 1, "channel": "\\ud800"}',
        '{"schema": "v1", "session": 3, "epoch": 1, "format": 1, "channel": "\\u0000"}',
        '{"schema": "v1", "session": 3, "epoch": -1, "format": 1}',
        '{"schema": "v1", "session": 9223372036854775808, "epoch": 1, "format": 1}',
    ],
)
def test_a_journal_without_a_valid_owner_is_not_replayed(tmp_path: Path, text: str) -> None:
    path = abandoned(tmp_path)
    (path / "session").write_text(text)
    (found,) = left(tmp_path)
    assert (found.owner, found.fault) == (None, NAMELESS)
    found.release()


def test_a_journal_of_another_format_is_not_replayed(tmp_path: Path) -> None:
    path = abandoned(tmp_path)
    owner = json.loads((path / "session").read_text())
    (path / "session").write_text(json.dumps({**owner, "format": FORMAT + 1, "new": "field"}))
    (found,) = left(tmp_path)
    assert f"format {FORMAT + 1}" in found.fault
    found.release()


def test_a_torn_entry_ends_the_journal_wherever_it_is_torn(tmp_path: Path) -> None:
    path = abandoned(tmp_path)
    segment = path / f"{1:016d}"
    whole = segment.read_bytes()
    for size in range(1, len(whole)):
        segment.write_bytes(whole[:size])
        (found,) = left(tmp_path)
        first, second = found.batches()
        assert (first.records, first.is_whole) == ([], size == AFTER_SIZE)
        assert (second.records, second.after) == (SECOND, 1)
        found.release()


def test_a_flipped_bit_ends_the_journal(tmp_path: Path) -> None:
    path = abandoned(tmp_path)
    segment = path / f"{1:016d}"
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    assert read_entries(segment) == ([], False)


def test_a_hostile_length_allocates_nothing(tmp_path: Path) -> None:
    segment = tmp_path / "segment"
    segment.write_bytes(b"\xff\xff\xff\xff" * 2)
    assert read_entries(segment) == ([], False)


@pytest.mark.parametrize("first", [[("-", 1, b"a")], [], [("after", -1, 0)], [("after", 1)]])
def test_a_file_whose_first_entry_names_no_batch_is_refused(
    tmp_path: Path, first: list[Record]
) -> None:
    body = msgpack.packb(first)
    segment = tmp_path / f"{1:016d}"
    segment.write_bytes(struct.pack("=II", len(body), zlib.crc32(body)) + body)
    with pytest.raises(ValueError, match="malformed"):
        read_entries(segment)


BOMBS = {
    "empty lists": b"\xdd" + struct.pack(">I", 8 << 20) + b"\x90" * (8 << 20),
    "lists of lists": b"\xdc\x10\x00" + (b"\xdc\x07\xd0" + b"\x90" * 2000) * 4096,
    "claimed lengths": b"\xdd\x00\x0f\xff\xff" * 1000,
    "depth": b"\x91" * (8 << 20),
    "numbers": b"\xdc\x10\x00" + (b"\xdc\x07\xd0" + b"\xe0" * 2000) * 4096,
    "long records": b"\xdc\x10\x00" + (b"\xdc\x07\xd0\xa1x" + b"\xe0" * 1999) * 4096,
    "maps": b"\x91\x91" + b"\x80" * 100,
    "records in records": msgpack.packb([("x", ("x", 1))]),
    "values": msgpack.packb(["x", "y"]),
    "values and records": msgpack.packb([("x",), "y"]),
    "number": msgpack.packb(7),
    "two lists": msgpack.packb([("x",)]) * 2,
    "wrong byte": b"\xc1",
    "wrong text": b"\x91\x91\xa1\xff",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_hostile_entry_is_refused_and_takes_little_memory(tmp_path: Path, bomb: str) -> None:
    body = BOMBS[bomb]
    segment = tmp_path / f"{1:016d}"
    segment.write_bytes(struct.pack("=II", len(body), zlib.crc32(body)) + body)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="malformed"):
            read_entries(segment)
        assert tracemalloc.get_traced_memory()[1] < len(body) + (16 << 20)
    finally:
        tracemalloc.stop()


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    segment = tmp_path / f"{1:016d}"
    segment.touch()
    os.truncate(segment, SEGMENT_MAX + 1)
    with pytest.raises(ValueError, match="larger than"):
        read_entries(segment)


def test_the_largest_change_is_read_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    records: list[Record] = [("-", number, b"n" * 255) for number in range(RECORDS_MAX)]
    journal.append(records)
    journal.close(keep=True)
    assert read_entries(tmp_path / "v1-3" / f"{1:016d}") == (records, True)


def test_a_change_that_no_replay_would_read_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    with pytest.raises(OSError, match="too large"):
        journal.append([("-", 1, bytes(RECORD_MAX))])
    journal.append(FIRST)
    journal.close(keep=True)
    assert read_entries(tmp_path / "v1-3" / f"{1:016d}") == (FIRST, True)


def test_batches_name_the_last_one_with_entries(tmp_path: Path) -> None:
    """A batch without entries may be missing. After a loss, a batch depends on an older one."""
    journal = Journal(tmp_path, OWNER)
    journal.append(FIRST)
    journal.begin(2)
    journal.begin(3)
    journal.append(SECOND)
    journal.append(SECOND)
    journal.begin(4)
    journal.append(FIRST)
    journal.begin(5, after=1)
    journal.append(FIRST)
    journal.close(keep=True)
    (found,) = left(tmp_path)
    assert [(batch.number, batch.after) for batch in found.batches() if batch.records] == [
        (1, 0),
        (3, 1),
        (4, 3),
        (5, 1),
    ]
    found.release()


def test_a_batch_that_no_replay_would_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECORD_MAX", 100)
    monkeypatch.setattr(module, "SEGMENT_MAX", 160)
    journal = Journal(tmp_path, OWNER)
    journal.append([("-", 1, bytes(60))])
    with pytest.raises(OSError, match="too large"):
        journal.append([("-", 1, bytes(60))])
    journal.close(keep=True)
    assert len(read_entries(tmp_path / "v1-3" / f"{1:016d}")[0]) == 1


def test_a_full_disk_refuses_an_entry_and_keeps_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, OWNER)
    journal.append(FIRST)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(OSError, match="full"):
            journal.append(SECOND)
    journal.append(SECOND)
    journal.close(keep=True)
    (found,) = left(tmp_path)
    assert batches(found) == [(1, FIRST + SECOND)]
    found.close(lost=False)


def test_a_journal_whose_file_could_not_be_created_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, OWNER)
    journal.append(FIRST)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing)
        for call in (partial(journal.begin, 2), partial(journal.append, SECOND)):
            with pytest.raises(OSError, match="No space"):
                call()
    journal.append(SECOND)
    journal.close(keep=True)
    (found,) = left(tmp_path)
    assert [(batch.number, batch.after) for batch in found.batches()] == [(1, 0), (2, 1)]
    found.close(lost=False)


def test_a_journal_that_cannot_be_created_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journal, "begin", failing)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            Journal(tmp_path, OWNER)
    assert list(tmp_path.iterdir()) == []


def test_an_incomplete_entry_that_stays_ends_with_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the database has the batch, a replay would stop at that entry."""
    journal = Journal(tmp_path, OWNER)
    journal.append(FIRST)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        patched.setattr(os, "ftruncate", failing)
        with pytest.raises(OSError, match="No space"):
            journal.append(SECOND)
    for number in (1, 2):
        with pytest.raises(OSError, match="earlier write"):
            journal.append(SECOND)
        journal.begin(number + 1)
    journal.drop(1)
    journal.append(SECOND)
    journal.close(keep=True)
    assert read_entries(tmp_path / "v1-3" / f"{3:016d}") == (SECOND, True)


def failing(*_: object, **__: object) -> None:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_unsent_entries_are_copied_for_the_operator(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    assert journal.keep_lost() is None
    journal.append(FIRST)
    place = journal.keep_lost()
    assert place is not None
    assert read_entries(place / f"{1:016d}") == (FIRST, True)
    journal.close()


def test_a_second_loss_keeps_the_first(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    journal.append(FIRST)
    first = journal.keep_lost()
    journal.begin(2)
    journal.drop(1)
    journal.append(SECOND)
    second = journal.keep_lost()
    journal.close(keep=True)
    (found,) = left(tmp_path)
    third = found.close(lost=True)
    assert [first, second, third] == [
        tmp_path / name for name in ("lost-v1-3", "lost-v1-3.2", "lost-v1-3.3")
    ]
    assert first is not None
    assert read_entries(first / f"{1:016d}") == (FIRST, True)
    assert left(tmp_path) == []


def test_a_released_journal_can_be_replayed_again(tmp_path: Path) -> None:
    abandoned(tmp_path)
    (found,) = left(tmp_path)
    assert left(tmp_path) == []
    found.release()
    found.release()
    (again,) = left(tmp_path)
    assert batches(again) == [(1, FIRST), (2, SECOND)]
    again.close(lost=False)


def test_the_next_batch_uses_the_file_of_one_that_was_applied(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    path = tmp_path / f"{OWNER.schema}-{OWNER.session}"
    journal.append(FIRST)
    inode = (path / f"{1:016d}").stat().st_ino
    journal.begin(2)
    journal.drop(1)
    assert [file.stat().st_size for file in path.iterdir() if file.stat().st_ino == inode] == [0], (
        "a crash before the next batch opens the file must leave no old entries under its name"
    )
    journal.append(SECOND)
    assert [int(file.name) for file in segments_of(path)] == [2], "no replay sees the free file"
    journal.begin(3)
    assert (path / f"{3:016d}").stat().st_ino == inode
    assert (path / f"{3:016d}").stat().st_size == 0
    journal.drop(2)
    journal.append(FIRST)
    assert read_changes(path / f"{3:016d}") == ([FIRST], True)
    kept = journal.keep_lost()
    assert kept is not None
    assert sorted(file.name for file in kept.iterdir()) == [f"{3:016d}", OWNER_FILE]
    journal.close()
    assert not path.exists()
