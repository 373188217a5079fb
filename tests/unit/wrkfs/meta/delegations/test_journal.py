"""The journal survives its process, and a torn or foreign one is recognised."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import msgpack
import pytest

from wrkfs.meta.delegations import journal as module
from wrkfs.meta.delegations.journal import (
    FORMAT,
    RECORD_MAX,
    RECORDS_MAX,
    SEGMENT_MAX,
    Journal,
    Owner,
    left_journals,
    read_entries,
)
from wrkfs.types import SessionId

if TYPE_CHECKING:
    from pathlib import Path

    from wrkfs.meta.delegations.delta import Record
    from wrkfs.meta.delegations.journal import LeftJournal

OWNER = Owner("v1", SessionId(3), 1)
FIRST: list[Record] = [("-", 1, b"a"), ("l", 2, b"\xff\0")]
SECOND: list[Record] = [("-", 1, b"b")]


def left(root: Path, schema: str = "v1") -> list[LeftJournal]:
    """Return the journals that dead processes left."""
    return list(left_journals(root, schema))


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
    assert list(found.batches()) == [(1, FIRST), (2, SECOND)]
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
    assert list(found.batches()) == [(2, SECOND)]
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
    assert left(tmp_path) == []
    journal.close()


def test_journals_of_other_volumes_are_left_alone(tmp_path: Path) -> None:
    path = abandoned(tmp_path)
    assert left(tmp_path, "v2") == []
    (path / "session").write_text(json.dumps({"schema": "v2", "session": 3, "epoch": 1}))
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": "v1"}',
        '{"schema": "v1", "session": "3", "epoch": 1}',
        '{"schema": "v1", "session": 3, "epoch": -1}',
        '{"schema": "v1", "session": 9223372036854775808, "epoch": 1}',
    ],
)
def test_a_journal_without_a_valid_owner_is_left_alone(tmp_path: Path, text: str) -> None:
    path = abandoned(tmp_path)
    (path / "session").write_text(text)
    assert left(tmp_path) == []
    assert path.exists()


def test_a_journal_of_another_format_is_left_alone(tmp_path: Path) -> None:
    path = abandoned(tmp_path)
    owner = {"schema": "v1", "session": 3, "epoch": 1, "format": FORMAT + 1}
    (path / "session").write_text(json.dumps(owner))
    assert left(tmp_path) == []


def test_a_torn_entry_ends_the_journal_wherever_it_is_torn(tmp_path: Path) -> None:
    path = abandoned(tmp_path)
    segment = path / f"{1:016d}"
    whole = segment.read_bytes()
    for size in range(1, len(whole)):
        segment.write_bytes(whole[:size])
        (found,) = left(tmp_path)
        assert list(found.batches()) == [(1, [])]
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


def test_a_batch_that_no_replay_would_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECORD_MAX", 100)
    monkeypatch.setattr(module, "SEGMENT_MAX", 150)
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
    assert list(found.batches()) == [(1, FIRST + SECOND)]
    found.close(lost=False)


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
    assert list(again.batches()) == [(1, FIRST), (2, SECOND)]
    again.close(lost=False)
