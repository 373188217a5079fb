"""The noted outcomes of backups, and when the schedule makes the next."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from boxd import doctor
from boxd.backup import status
from boxd.backup.creation import BackupJob
from boxd.backup.schedule import BackupSchedule
from boxd.backup.status import Status
from boxd.backup.target import DirectoryTarget
from boxd.clock import SystemClock
from boxd.config import Config
from tests.harness.simulation.world import TurnedClock

if TYPE_CHECKING:
    from boxd.backup.keyfile import Key

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
NOW = SystemClock().now().replace(microsecond=0)


def test_outcomes_are_kept_by_target(tmp_path: Path) -> None:
    assert status.load(tmp_path) == {}
    one = Status(succeeded=NOW, archive="a.backup", every=DAY)
    two = Status(failed=NOW, why="disk full")
    status.save(tmp_path, "/mnt/one", one)
    status.save(tmp_path, "s3://two", two)
    assert status.load(tmp_path) == {"/mnt/one": one, "s3://two": two}
    status.save(tmp_path, "/mnt/one", replace(one, failed=NOW))
    assert status.load(tmp_path)["/mnt/one"].failed == NOW


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"every_s": null}}'])
def test_a_damaged_note_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / status.FILE).write_text(text)
    assert status.load(tmp_path) == {}


def left(state: Path, known: Status | None) -> timedelta:
    """Until the next backup, when the last went as is known."""
    clock = TurnedClock()
    clock.wall = NOW
    job = BackupJob(state, "", DirectoryTarget(Path("/mnt")), cast("Key", None), clock, every=DAY)
    if known is not None:
        status.save(state, "/mnt", known)
    return BackupSchedule(job, DAY, retry=10 * MINUTE).time_left()


def test_the_next_backup_is_due_by_the_outcome_of_the_last(tmp_path: Path) -> None:
    assert left(tmp_path, None) <= timedelta(0)
    assert left(tmp_path, Status(succeeded=NOW)) == DAY
    assert left(tmp_path, Status(succeeded=NOW - 2 * DAY)) <= timedelta(0)
    failed = Status(succeeded=NOW - DAY / 2, failed=NOW - MINUTE)
    assert left(tmp_path, failed) == 9 * MINUTE
    assert left(tmp_path, Status(failed=NOW - DAY)) <= timedelta(0)


def test_marks_of_a_clock_that_was_set_back_delay_nothing(tmp_path: Path) -> None:
    assert left(tmp_path, Status(succeeded=NOW + MINUTE)) <= timedelta(0)
    assert left(tmp_path, Status(failed=NOW + DAY)) <= timedelta(0)


def check(state: Path) -> doctor.Check:
    """What `boxd doctor` says."""
    return doctor._backup(Config(state_dir=state))


def test_doctor_tells_failed_and_missed_backups(tmp_path: Path) -> None:
    assert check(tmp_path).ok
    assert "no backup yet" in check(tmp_path).finding
    status.save(tmp_path, "/mnt/a", Status(succeeded=NOW, archive="a.backup", every=DAY))
    assert check(tmp_path).ok
    assert "a.backup in /mnt/a" in check(tmp_path).finding
    status.save(tmp_path, "/mnt/a", Status(succeeded=NOW - 3 * DAY, archive="a", every=DAY))
    assert not check(tmp_path).ok
    assert status.FILE in check(tmp_path).remedy
    status.save(tmp_path, "/mnt/a", Status(succeeded=NOW, failed=NOW, why="no room", every=DAY))
    missed = check(tmp_path)
    assert (missed.ok, missed.needed) == (False, False)
    assert "no room" in missed.finding
