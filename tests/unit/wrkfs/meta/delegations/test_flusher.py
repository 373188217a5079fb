"""Batches reach the database in order, once, and no caller waits for ever."""

from __future__ import annotations

import asyncio
import errno
import shutil
from typing import TYPE_CHECKING, cast

import pytest
import pytest_asyncio

from tests.harness.logs import provoked
from tests.harness.wait import at_once
from wrkfs.errors import Fenced, StorageError, Unavailable
from wrkfs.meta.delegations import delta, flusher
from wrkfs.meta.delegations.flusher import Flusher
from wrkfs.meta.delegations.journal import RECORD_MAX, Journal, Owner
from wrkfs.types import Ino, SessionId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from wrkfs.errors import WrkfsError
    from wrkfs.meta.interface.delegations import Batch, DelegationStore

HOME = Ino(7)


class Database:
    """Applies batches, after the failures that a test has planned."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[object], list[Ino]]] = []
        self.failures: list[Exception] = []
        self.attempts: list[int] = []
        self.held = asyncio.Event()
        self.held.set()

    async def apply(self, seq: int, batch: Batch, release: Sequence[Ino]) -> None:
        """Apply a batch."""
        self.attempts.append(seq)
        await self.held.wait()
        if self.failures:
            raise self.failures.pop(0)
        cut = batch.arguments()[15]
        self.batches.append((seq, list(cut), list(release)))


@pytest.fixture
def database() -> Database:
    """Return the database."""
    return Database()


@pytest_asyncio.fixture
async def sender(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Flusher]:
    """Yield a flusher that collects changes until a flush."""
    monkeypatch.setattr(flusher, "DELAY", 60.0)
    monkeypatch.setattr(flusher, "RETRY", 0.0)
    made = Flusher(cast("DelegationStore", database))
    made.start(Journal(tmp_path, Owner("v", SessionId(1), 1)))
    yield made
    await made.stop()
    made.close_journal()


def change(sender: Flusher, name: bytes) -> None:
    """Remove a name."""
    sender.record([delta.cut_record(HOME, name)])


async def test_changes_share_a_batch(sender: Flusher, database: Database) -> None:
    change(sender, b"a")
    change(sender, b"b")
    assert await sender.flush()
    assert database.batches == [(1, [b"a", b"b"], [])]
    assert sender.idle
    assert not await sender.flush()


async def test_changes_during_a_batch_are_the_next_one(sender: Flusher, database: Database) -> None:
    database.held.clear()
    change(sender, b"a")
    first = asyncio.create_task(sender.flush())
    await at_once(lambda: database.attempts)
    change(sender, b"b")
    assert sender.concerns([HOME])
    second = asyncio.create_task(sender.flush())
    await asyncio.sleep(0)
    database.held.set()
    await asyncio.gather(first, second)
    assert database.batches == [(1, [b"a"], []), (2, [b"b"], [])]


async def test_delegations_end_with_the_changes_before_them(
    sender: Flusher, database: Database
) -> None:
    change(sender, b"a")
    sender.release([HOME])
    await sender.flush()
    assert database.batches == [(1, [b"a"], [HOME])]


async def test_an_outage_keeps_the_batch(sender: Flusher, database: Database) -> None:
    database.failures = [Unavailable("outage")]
    change(sender, b"a")
    with provoked("wrkfs.meta.delegations.flusher"), pytest.raises(Unavailable):
        await sender.flush()
    await sender.flush()
    assert database.batches == [(1, [b"a"], [])]
    assert set(database.attempts) == {1}


@pytest.mark.parametrize("error", [Fenced("over"), StorageError("it does not fit")])
async def test_a_refused_batch_is_reported_and_kept(
    sender: Flusher, database: Database, tmp_path: Path, error: WrkfsError
) -> None:
    losses: list[WrkfsError] = []
    sender.on_loss = losses.append
    database.failures = [error]
    change(sender, b"a")
    with provoked("wrkfs.meta.delegations.flusher") as lines, pytest.raises(type(error)):
        await sender.flush()
    assert "lost changes of 'a'" in lines[0]
    assert len(losses) == 1
    assert sender.idle
    assert (tmp_path / "lost-v-1" / f"{1:016d}").stat().st_size
    assert sender.can_record is not isinstance(error, Fenced)


async def test_nothing_is_recorded_without_a_journal(database: Database) -> None:
    made = Flusher(cast("DelegationStore", database))
    made.start(None)
    assert not made.can_record
    with pytest.raises(OSError, match="journal"):
        change(made, b"a")
    made.release([HOME])
    await made.flush()
    assert database.batches == [(1, [], [HOME])]
    await made.stop()


async def test_a_stop_ends_the_wait_and_keeps_the_journal(
    sender: Flusher, database: Database, tmp_path: Path
) -> None:
    database.held.clear()
    change(sender, b"a")
    waiting = asyncio.create_task(sender.flush())
    await at_once(lambda: database.attempts)
    await sender.stop()
    with pytest.raises(Unavailable):
        await waiting
    sender.close_journal()
    assert (tmp_path / "v-1" / f"{1:016d}").stat().st_size


async def test_a_full_delta_makes_callers_wait(
    sender: Flusher, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "FULL", 1)
    change(sender, b"a")
    await sender.make_room()
    assert database.batches == [(1, [b"a"], [])]


async def test_a_loss_is_reported_although_the_journal_cannot_be_copied(
    sender: Flusher, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    losses: list[WrkfsError] = []
    sender.on_loss = losses.append
    database.failures = [StorageError("it does not fit")]
    monkeypatch.setattr(shutil, "copytree", full)
    change(sender, b"a")
    with (
        provoked("wrkfs.meta.delegations.flusher") as lines,
        pytest.raises(StorageError, match="fit"),
    ):
        await sender.flush()
    assert "No space left" in lines[0]
    assert len(losses) == 1
    change(sender, b"b")
    await sender.flush()
    assert [batch[1] for batch in database.batches] == [[b"b"]]


async def test_an_applied_batch_is_no_loss_if_its_journal_cannot_be_deleted(
    sender: Flusher, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    losses: list[WrkfsError] = []
    sender.on_loss = losses.append
    monkeypatch.setattr(Journal, "drop", read_only)
    change(sender, b"a")
    with provoked("wrkfs.meta.delegations.flusher") as lines:
        await sender.flush()
    assert "Read-only" in lines[0]
    assert losses == []
    change(sender, b"b")
    with provoked("wrkfs.meta.delegations.flusher"):
        await sender.flush()
    assert [batch[1] for batch in database.batches] == [[b"a"], [b"b"]]


async def test_a_change_that_does_not_fit_the_journal_is_not_recorded(sender: Flusher) -> None:
    with pytest.raises(OSError, match="too large"):
        change(sender, bytes(RECORD_MAX))
    assert sender.idle


async def test_an_unexpected_error_loses_a_batch_and_not_the_sender(
    sender: Flusher, database: Database, tmp_path: Path
) -> None:
    losses: list[WrkfsError] = []
    sender.on_loss = losses.append
    database.failures = [RuntimeError("a bug")]
    change(sender, b"a")
    sender.release([HOME])
    with provoked("wrkfs.meta.delegations.flusher") as lines:
        with pytest.raises(StorageError, match="RuntimeError"):
            await sender.flush()
        assert "lost changes of 'a'" in lines[1]
    assert len(losses) == 1
    assert sender.can_record
    assert (tmp_path / "lost-v-1" / f"{1:016d}").stat().st_size
    change(sender, b"b")
    await sender.flush()
    # The other session still waits for the directory.
    assert database.batches == [(3, [b"b"], [HOME])]


async def test_a_loss_that_cannot_be_reported_ends_no_wait(
    sender: Flusher, database: Database
) -> None:
    def broken(_: WrkfsError) -> None:
        raise RuntimeError("a second bug")

    sender.on_loss = broken
    database.failures = [StorageError("it does not fit")]
    change(sender, b"a")
    with provoked("wrkfs.meta.delegations.flusher"):
        with pytest.raises(StorageError, match="fit"):
            await sender.flush()
        change(sender, b"b")
        await sender.flush()
    assert database.batches[-1][1] == [b"b"]


@pytest.mark.parametrize("error", [Fenced("over"), StorageError("refused")])
async def test_a_failed_release_loses_no_changes(
    sender: Flusher, database: Database, error: WrkfsError
) -> None:
    losses: list[WrkfsError] = []
    sender.on_loss = losses.append
    database.failures = [error]
    sender.release([HOME])
    with provoked("wrkfs.meta.delegations.flusher") as lines, pytest.raises(type(error)):
        await sender.flush()
    assert "cannot give delegations back" in lines[0]
    assert losses == []
    assert not await sender.flush()


async def test_a_directory_is_being_released_until_the_batch_is_applied(
    sender: Flusher, database: Database
) -> None:
    database.held.clear()
    sender.release([HOME])
    assert sender.is_releasing(HOME)
    waiting = asyncio.create_task(sender.flush())
    await at_once(lambda: database.attempts)
    assert sender.is_releasing(HOME)
    assert not sender.is_releasing(Ino(8))
    database.held.set()
    await waiting
    assert [sender.is_releasing(HOME)] == [False]


async def test_a_full_disk_stops_no_later_change(
    sender: Flusher, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    change(sender, b"a")
    with monkeypatch.context() as patched, provoked("wrkfs.meta.delegations.flusher"):
        patched.setattr(Journal, "_open", full)
        await sender.flush()
        with pytest.raises(OSError, match="No space"):
            change(sender, b"refused")
    change(sender, b"b")
    assert (tmp_path / "v-1" / f"{2:016d}").stat().st_size
    await sender.flush()
    assert [batch[1] for batch in database.batches] == [[b"a"], [b"b"]]


async def test_a_journal_may_come_later(database: Database, tmp_path: Path) -> None:
    made = Flusher(cast("DelegationStore", database))
    assert [made.lacks_journal] == [None]
    made.start(None)
    made.release([HOME])
    await made.flush()
    number = made.lacks_journal
    assert number == 2
    made.use_journal(Journal(tmp_path, Owner("v", SessionId(1), 1), number))
    assert [made.lacks_journal] == [None]
    change(made, b"a")
    assert (tmp_path / "v-1" / f"{2:016d}").stat().st_size
    await made.flush()
    assert database.batches[-1] == (2, [b"a"], [])
    await made.stop()
    made.close_journal()
