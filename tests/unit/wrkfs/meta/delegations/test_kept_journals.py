"""The operator sees journals and lost changes; reading them disturbs no mount."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from typing import TYPE_CHECKING

import msgpack
import pytest

from wrkfs.meta.delegations import delta, kept_journals
from wrkfs.meta.delegations.journal import Journal, Owner, left_journals
from wrkfs.meta.delegations.kept_journals import IN_USE, LOST, WAITING, described
from wrkfs.types import Attr, Extent, Ino, SessionId, SliceId

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wrkfs.meta.delegations.delta import Record

OWNER = Owner("v1", SessionId(3), 1)
HOME, FILE = Ino(7), Ino(20)
ATTR = Attr(FILE, stat.S_IFREG | 0o644, 1, 0, 0, 0, 9, 1, 2, 3, 0, 0, HOME)
INLINE = Extent(0, SliceId(5), 9, b"", b"123456789")
STORED = Extent(9, SliceId(6), 70_000, b"0123", None)
RECORDS: list[Record] = [
    delta.inode_record(ATTR, new=True),
    delta.put_record(HOME, b"new\x1b[2J", FILE, 20, fresh=True),
    delta.cut_record(HOME, b"old"),
    delta.link_record(FILE, b"target"),
    delta.extent_record(FILE, INLINE),
    delta.extent_record(FILE, STORED),
    delta.emptied_record(FILE),
    delta.gone_record(FILE, HOME, b"new", 9, 8),
]


def closed(root: Path, *changes: list[Record]) -> Path:
    """Write the journal of a killed process, one change after the other; return its directory."""
    journal = Journal(root, OWNER)
    for records in changes:
        journal.append(records)
    journal.close(keep=True)
    return root / "v1-3"


def test_without_a_directory_there_are_no_journals(tmp_path: Path) -> None:
    assert kept_journals.kept_journals(tmp_path / "missing") == []


def test_each_journal_has_its_state(tmp_path: Path) -> None:
    closed(tmp_path, RECORDS, RECORDS[2:3])
    ((left,), _) = left_journals(tmp_path, "v1")
    lost = left.close(lost=True)
    assert lost is not None
    for path in (*lost.iterdir(), lost):
        os.utime(path, (1000, 1000))
    closed(tmp_path, RECORDS[2:3])
    for path in (*(tmp_path / "v1-3").iterdir(), tmp_path / "v1-3"):
        os.utime(path, (2000, 2000))
    running = Journal(tmp_path, Owner("v2", SessionId(4), 1))
    first, second, third = kept_journals.kept_journals(tmp_path)
    assert (first.state, first.owner, first.changes, first.written) == (LOST, OWNER, 2, 1000)
    assert first.names == (b"new\x1b[2J", b"old")
    assert (second.state, second.changes, second.written) == (WAITING, 1, 2000)
    assert (third.state, third.changes, third.fault) == (IN_USE, 0, "")
    running.close()


def test_a_list_leaves_the_journal_to_the_next_mount(tmp_path: Path) -> None:
    closed(tmp_path, RECORDS)
    kept_journals.kept_journals(tmp_path)
    ((left,), _) = left_journals(tmp_path, "v1")
    left.close(lost=False)


def test_faults_are_named(tmp_path: Path) -> None:
    path = closed(tmp_path, RECORDS, RECORDS)
    segment = path / f"{1:016d}"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1])
    (torn,) = kept_journals.kept_journals(tmp_path)
    assert (torn.changes, torn.fault) == (1, "the last change is incomplete")
    body = msgpack.packb(["no record"])
    segment.write_bytes(struct.pack("=II", len(body), zlib.crc32(body)) + body)
    (malformed,) = kept_journals.kept_journals(tmp_path)
    assert "malformed" in malformed.fault
    (path / "session").write_text("{")
    (nameless,) = kept_journals.kept_journals(tmp_path)
    assert "malformed" in nameless.fault
    segment.write_bytes(whole)
    (nameless,) = kept_journals.kept_journals(tmp_path)
    assert (nameless.owner, nameless.changes) == (None, 2)
    assert nameless.names == (b"new\x1b[2J", b"old")
    assert nameless.fault
    (path / "session").unlink()
    (nameless,) = kept_journals.kept_journals(tmp_path)
    assert nameless.fault == "No such file or directory"
    assert (nameless.state, nameless.changes) == (WAITING, 2)


def test_the_list_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_journals, "JOURNALS_MAX", 2)
    closed(tmp_path, *([delta.cut_record(HOME, b"%d" % number)] for number in range(9)))
    for number in range(3):
        (tmp_path / f"lost-v1-{number}").mkdir()
    journals = kept_journals.kept_journals(tmp_path)
    assert len(journals) == 2
    assert all(len(journal.names) <= kept_journals.NAMES_MAX for journal in journals)


def test_each_record_is_described(tmp_path: Path) -> None:
    path = closed(tmp_path, RECORDS)
    assert list(described(path, ascii)) == [
        "inode 20: mode 100644, links 1, size 9",
        "name b'new\\x1b[2J' in directory 7: inode 20",
        "name b'old' in directory 7: removed",
        "inode 20: symbolic link to b'target'",
        "inode 20: 9 bytes at 0, in the journal",
        "inode 20: 70000 bytes at 9, slice 6",
        "inode 20: truncated to 0 bytes",
        "inode 20: removed",
    ]


@pytest.mark.parametrize("record", [("?", 1), ("+",), ("i", 1, 2, "x" * 1000), ("e", 1, 2), (7,)])
def test_an_unknown_record_is_counted_only(tmp_path: Path, record: Record) -> None:
    (line,) = described(closed(tmp_path, [record]), ascii)
    assert line == f"unknown record with {len(record) - 1} values"


def test_a_description_ends_with_a_fault(tmp_path: Path) -> None:
    path = closed(tmp_path, RECORDS[2:3], RECORDS[2:3])
    segment = path / f"{1:016d}"
    segment.write_bytes(segment.read_bytes()[:-1])
    assert list(described(path, ascii))[-1] == "batch 1: the last change is incomplete"
    body = msgpack.packb(["no record"])
    segment.write_bytes(struct.pack("=II", len(body), zlib.crc32(body)) + body)
    (line,) = described(path, ascii)
    assert "malformed" in line


@pytest.mark.parametrize("name", ["session", f"{1:016}"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_or_a_link_in_a_journal_is_a_fault(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """A mount process that somebody took over makes it; the reader is root."""
    path = closed(tmp_path, RECORDS)
    (path / name).unlink()
    make(path / name)
    (journal,) = kept_journals.kept_journals(tmp_path)
    assert journal.fault
