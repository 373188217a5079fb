"""Journals of dead processes are sent, or kept for the operator."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgpack
import pytest

from tests.harness.logs import provoked
from wrkfs.errors import (
    Doubtful,
    Fenced,
    InvalidArgument,
    NoSpace,
    StorageError,
    Unavailable,
)
from wrkfs.meta.delegations import delta
from wrkfs.meta.delegations.journal import Journal, Owner
from wrkfs.meta.delegations.replay import replay_left, replay_opened
from wrkfs.types import Ino, SessionId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.errors import WrkfsError
    from wrkfs.meta.interface.delegations import Batch, DelegationStore

HOME = Ino(7)
OWNER = Owner("v", SessionId(3), 1, channel="w3")


class Database:
    """The database with one dead session. `last` is its last applied batch; None: fenced.

    Each call of `apply_for` raises `failure` if it is set.
    """

    def __init__(self, last: int | None, *, failure: WrkfsError | None = None) -> None:
        self.last = last
        self.failure = failure
        self.cut: list[tuple[int, list[object]]] = []
        self.fenced: list[SessionId] = []

    async def claim(self, session: SessionId, epoch: int, channel: str) -> int | None:
        """Return the last batch."""
        assert (session, epoch, channel) == (3, 1, "w3")
        return self.last

    async def apply_for(self, session: SessionId, epoch: int, seq: int, batch: Batch) -> None:
        """Apply a batch of the dead session."""
        assert (session, epoch) == (3, 1)
        if self.failure is not None:
            raise self.failure
        self.cut.append((seq, list(batch.arguments()[15])))
        self.last = seq

    async def fence(self, session: SessionId, *, force: bool = False) -> bool:
        """Fence the dead session."""
        assert force
        self.fenced.append(session)
        return True


def abandon(root: Path, *batches: bytes) -> None:
    """Leave a journal of the dead session, with one removal in each batch."""
    journal = Journal(root, OWNER)
    for number, name in enumerate(batches, 1):
        journal.begin(number)
        journal.append([delta.cut_record(HOME, name)])
    journal.close(keep=True)


async def replay(database: Database, root: Path) -> None:
    """Replay the journals below a directory."""
    await replay_left(cast("DelegationStore", database), "v", root)


async def test_batches_that_the_database_lacks_are_sent(tmp_path: Path) -> None:
    abandon(tmp_path, b"a", b"b", b"c")
    database = Database(1)
    await replay(database, tmp_path)
    assert database.cut == [(2, [b"b"]), (3, [b"c"])]
    assert database.fenced == [3]
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_is_open_only_during_the_replay(tmp_path: Path) -> None:
    abandon(tmp_path / "later", b"a")
    opened = []

    @asynccontextmanager
    async def open_journals() -> AsyncIterator[Path]:
        opened.append("open")
        (tmp_path / "later").rename(tmp_path / "now")
        yield tmp_path / "now"
        opened.append("closed")

    database = Database(0)
    await replay_opened(cast("DelegationStore", database), "v", open_journals)
    assert database.cut == [(1, [b"a"])]
    assert opened == ["open", "closed"]


async def test_changes_of_a_fenced_session_are_kept(tmp_path: Path) -> None:
    abandon(tmp_path, b"a")
    database = Database(None)
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(database, tmp_path)
    assert database.cut == []
    assert "lost changes" in lines[0]
    assert [path.name for path in tmp_path.iterdir()] == ["lost-v-3"]


@pytest.mark.parametrize("error", [StorageError, InvalidArgument, Fenced, Doubtful])
async def test_a_refused_batch_ends_the_replay(tmp_path: Path, error: type[WrkfsError]) -> None:
    abandon(tmp_path, b"a", b"b")
    database = Database(0, failure=error("it does not fit"))
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(database, tmp_path)
    assert "it does not fit" in lines[0]
    assert database.fenced == [3]
    assert [path.name for path in tmp_path.iterdir()] == ["lost-v-3"]


@pytest.mark.parametrize("error", [Unavailable, NoSpace])
async def test_an_outage_keeps_the_journal_for_the_next_replay(
    tmp_path: Path, error: type[WrkfsError]
) -> None:
    abandon(tmp_path, b"a", b"b")
    database = Database(0, failure=error("outage"))
    with pytest.raises(error):
        await replay(database, tmp_path)
    assert database.fenced == []
    database.failure = None
    await replay(database, tmp_path)
    assert database.cut == [(1, [b"a"]), (2, [b"b"])]
    assert database.fenced == [3]
    assert list(tmp_path.iterdir()) == []


async def test_batches_before_a_malformed_one_are_sent(tmp_path: Path) -> None:
    abandon(tmp_path, b"a", b"b", b"c")
    body = msgpack.packb(["no record"])
    segment = tmp_path / "v-3" / f"{2:016d}"
    segment.write_bytes(struct.pack("=II", len(body), zlib.crc32(body)) + body)
    database = Database(0)
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(database, tmp_path)
    assert "malformed" in lines[0]
    assert database.cut == [(1, [b"a"])]
    assert [path.name for path in tmp_path.iterdir()] == ["lost-v-3"]


@pytest.mark.parametrize("last", [0, 1])
async def test_a_batch_whose_predecessor_is_missing_is_kept(tmp_path: Path, last: int) -> None:
    abandon(tmp_path, b"a", b"b", b"c", b"d")
    (tmp_path / "v-3" / f"{2:016d}").unlink()
    database = Database(last)
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(database, tmp_path)
    assert "batch 3 needs batch 2, which is missing" in lines[0]
    assert database.cut == [(1, [b"a"])][last:]
    assert database.fenced == [3]
    # What the database has is not lost.
    assert lost_files(tmp_path) == [f"{3:016d}", f"{4:016d}", "session"]


@pytest.mark.parametrize("last", [0, 1])
async def test_batches_after_an_incomplete_one_are_kept(tmp_path: Path, last: int) -> None:
    """Also if an earlier replay sent the changes before the incomplete one."""
    abandon(tmp_path, b"a", b"b")
    segment = tmp_path / "v-3" / f"{1:016d}"
    segment.write_bytes(segment.read_bytes() + b"torn")
    database = Database(last)
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(database, tmp_path)
    assert "the last change of batch 1 is incomplete" in lines[0]
    assert database.cut == [(1, [b"a"])][last:]
    assert lost_files(tmp_path) == [f"{1:016d}", f"{2:016d}", "session"]


async def test_a_batch_that_was_cut_between_two_changes_counts_as_incomplete(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path, OWNER)
    journal.append([delta.cut_record(HOME, b"a")])
    segment = tmp_path / "v-3" / f"{1:016d}"
    size = segment.stat().st_size
    journal.append([delta.cut_record(HOME, b"gone")])
    journal.begin(2)
    journal.append([delta.cut_record(HOME, b"later")])
    journal.close(keep=True)
    os.truncate(segment, size)
    database = Database(0)
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(database, tmp_path)
    assert "batch 2 needs batch 1" in lines[0]
    assert database.cut == [(1, [b"a"])]


async def test_a_batch_after_a_loss_needs_none_of_the_lost_ones(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    journal.append([delta.cut_record(HOME, b"lost")])
    journal.begin(2)
    journal.begin(3, after=0)
    journal.drop(1)
    journal.append([delta.cut_record(HOME, b"later")])
    journal.close(keep=True)
    database = Database(0)
    await replay(database, tmp_path)
    assert database.cut == [(3, [b"later"])]
    assert list(tmp_path.iterdir()) == []


async def test_a_journal_of_unknown_origin_is_kept(tmp_path: Path) -> None:
    abandon(tmp_path, b"a")
    (tmp_path / "v-3" / "session").write_text("{")
    database = Database(0)
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(database, tmp_path)
    assert "it names no session" in lines[0]
    assert (database.cut, database.fenced) == ([], [])
    assert lost_files(tmp_path) == [f"{1:016d}", "session"]


async def test_a_journal_that_cannot_be_moved_does_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    abandon(tmp_path, b"a")
    monkeypatch.setattr(Path, "rename", read_only)
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(Database(None), tmp_path)
    assert "Read-only" in lines[0]


async def test_sessions_with_a_journal_in_use_are_returned(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    store = cast("DelegationStore", Database(0))
    assert await replay_left(store, "v", tmp_path) == {3}
    journal.close()


def lost_files(root: Path) -> list[str]:
    """Return the files that are kept of the journal."""
    return sorted(path.name for path in (root / "lost-v-3").iterdir())


async def test_a_journal_that_cannot_be_read_is_kept(tmp_path: Path) -> None:
    abandon(tmp_path, b"a")
    segment = tmp_path / "v-3" / f"{1:016d}"
    segment.unlink()
    segment.mkdir()
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(Database(0), tmp_path)
    assert "cannot be read" in lines[0]
    assert [path.name for path in tmp_path.iterdir()] == ["lost-v-3"]


async def test_a_malformed_record_ends_the_replay(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWNER)
    journal.append([("?", 1)])
    journal.close(keep=True)
    with provoked("wrkfs.meta.delegations.replay") as lines:
        await replay(Database(0), tmp_path)
    assert "malformed" in lines[0]


async def test_without_journals_nothing_happens(tmp_path: Path) -> None:
    database = Database(0)
    await replay(database, tmp_path / "missing")
    assert database.fenced == []
