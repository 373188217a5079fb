"""Damaged journals: the mount replays a prefix of the changes, and reports the rest as lost."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from boxd.workspaces.journals import journal_lines, journal_row, read_journals
from tests.harness.mounts.drive import MountProcess
from tests.harness.mounts.step_script import StepScript
from tests.harness.servers.backends import wait_for_the_dead
from tests.harness.volumes.fsck import fsck_clean
from tests.harness.volumes.held_batches import HeldBatches
from wrkfs.meta.delegations.kept_journals import LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

    Damage: TypeAlias = Callable[[Path, random.Random], object]

LONGEST = 0.5
"""Seconds of work before the kill."""
FSCK = 20
"""Rounds between two checks of every row of the volume."""


def files_of(journal: Path) -> list[Path]:
    """Return the files of a journal that have changes, the oldest first."""
    return [path for path in sorted(journal.glob("[0-9]*")) if path.stat().st_size]


def cut(path: Path, chance: random.Random) -> None:
    """Cut a file at any byte."""
    with path.open("r+b") as file:
        file.truncate(chance.randrange(path.stat().st_size))


def flip(path: Path, chance: random.Random) -> None:
    """Change one bit of a file, as a failing disk does."""
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def with_owner(**values: object) -> Damage:
    """Return a damage that changes what a journal says about its owner."""

    def change(journal: Path, _: random.Random) -> None:
        owner = json.loads((journal / "session").read_text())
        (journal / "session").write_text(json.dumps({**owner, **values}))

    return change


DAMAGES: dict[str, Damage] = {
    "intact": lambda *_: None,
    "two starts": lambda *_: None,
    "newest cut": lambda journal, chance: cut(files_of(journal)[-1], chance),
    "oldest cut": lambda journal, chance: cut(files_of(journal)[0], chance),
    "newest missing": lambda journal, _: files_of(journal)[-1].unlink(),
    "oldest missing": lambda journal, _: files_of(journal)[0].unlink(),
    "bit flipped": lambda journal, chance: flip(chance.choice(files_of(journal)), chance),
    "file empty": lambda journal, chance: chance.choice(files_of(journal)).write_bytes(b""),
    "file of zeros": lambda journal, chance: chance.choice(files_of(journal)).write_bytes(
        bytes(5000)
    ),
    "garbage": lambda journal, chance: files_of(journal)[0].write_bytes(chance.randbytes(5000)),
    "owner missing": lambda journal, _: (journal / "session").unlink(),
    "owner garbage": lambda journal, _: (journal / "session").write_bytes(b"\xff{"),
    "another volume": with_owner(schema="v" + "0" * 32),
    "another session": with_owner(session=1 << 40),
    "another epoch": with_owner(epoch=77),
    "volume restored": with_owner(channel="w" + "0" * 32),
    "newer format": with_owner(format=2, more="field"),
}
HARMLESS = {"intact", "two starts"}
SILENT = {"newest missing", "newest cut", "file empty"}
"""Damages that may leave a valid journal, which is shorter. Those of its only file may, too."""
NAMELESS = {
    "owner missing",
    "owner garbage",
    "another volume",
    "another session",
    "another epoch",
    "volume restored",
    "newer format",
}
"""Damages after which the journal is not replayed at all."""


@pytest.fixture
def drive(volume: VolumeConfig, tmp_path: Path) -> Iterator[MountProcess]:
    """Yield a mount with a journal below `journals`."""
    made = MountProcess(volume, tmp_path, "--journal", str(tmp_path / "journals"))
    try:
        yield made
    finally:
        made.clean()


def work_and_kill(drive: MountProcess, script: StepScript, dsn: str, seed: int) -> None:
    """Kill the mount at a random moment of the script; mostly while a batch waits."""
    chance = random.Random(seed)
    script.start()
    time.sleep(chance.uniform(0, LONGEST))
    held = HeldBatches(dsn, drive.config) if chance.random() < 0.8 else None
    if held is not None:
        time.sleep(chance.uniform(0, LONGEST))
    drive.kill()
    if held is not None:
        if chance.random() < 0.7:
            held.drop()  # otherwise the database applies a batch although the mount is dead
        held.end()
    script.join()
    wait_for_the_dead(drive.config)


def start_twice(drive: MountProcess, directory: Path) -> None:
    """Start the mount, and another one of the same volume and host at the same time."""
    directory.mkdir()
    options = ("--journal", str(drive.path.parent / "journals"))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(MountProcess, drive.config, directory, *options)
        drive.start()
        other.result().clean()
    shutil.rmtree(directory)


def lost_journals(directory: Path, log: str) -> list[str]:
    """Return the reports of lost journals: the log names them, and the operator can read them."""
    told = []
    for journal in read_journals([directory]):
        if journal.state == LOST:
            assert str(journal.path) in log
            row = journal_row(journal, [])
            told += [*row, *journal_lines([directory], journal.path.name)]
            shutil.rmtree(journal.path)
    return told


@pytest.mark.promise("D1")
@pytest.mark.figure("CR-12")
@pytest.mark.timeout(600)
def test_what_a_damaged_journal_leaves_is_a_prefix(
    volume: VolumeConfig, drive: MountProcess, drive_database: str, tmp_path: Path, figures: Figures
) -> None:
    """It holds what fsync covered. Nothing is applied behind a gap, or twice."""
    root = drive.path / "home"
    root.mkdir()
    script = StepScript(root, 23, syncs=0.1)
    journals = tmp_path / "journals"
    seen: Counter[str] = Counter()
    told: Counter[str] = Counter()
    shorter: Counter[str] = Counter()
    two = 0
    for number in figures(ci=2 * len(DAMAGES), long=20_000):
        name = list(DAMAGES)[number % len(DAMAGES)]
        work_and_kill(drive, script, drive_database, number)
        (journal,) = journals.glob("v*-*")
        files = files_of(journal)
        if files:
            seen[name] += 1
            two += len(files) > 1
            DAMAGES[name](journal, random.Random(number))
        expected, before = script.states[script.answered :], len(drive.log.read_text())
        if name == "two starts":
            start_twice(drive, tmp_path / "other")
        else:
            drive.start()
        wrong = script.verify(script.answered if name in HARMLESS else script.durable)
        assert not wrong, f"round {number}, {name}, {len(files)} files: {wrong}"
        lost = lost_journals(journals, drive.log.read_text()[before:])
        assert not (lost and name in HARMLESS), f"round {number}: {lost}"
        assert lost or not (files and name in NAMELESS), f"round {number}, {name}: nothing told"
        if script.states[0] not in expected:
            shorter[name] += 1
            assert lost or name in SILENT or len(files) == 1, (
                f"round {number}, {name}: lost silently"
            )
        told[name] += bool(lost)
        assert [path.name for path in journals.iterdir() if path.name == journal.name] == []
        if number % FSCK == 0:
            fsck_clean(volume)
    assert len(seen) > len(DAMAGES) // 2, seen
    print(f"journals with changes {seen}; {two} with two files; told {told}; shorter {shorter}")
