"""SQLite with a rollback journal: two processes on one mount, one of them killed at times."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.database import make, rows, start
from tests.mount.programs.programs import run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.figures import Figures


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist"])
def test_two_processes_write(mounted_twice: tuple[Path, Path], mode: str) -> None:
    path = mounted_twice[0] / f"{mode}.db"
    make(path, mode)
    writers = [start(path, name, 12) for name in ("one", "two")]
    for writer in writers:
        assert writer.communicate()[0].split() == [str(n) for n in range(12)]
        assert writer.returncode == 0
    assert rows(path) == 24
    assert rows(mounted_twice[1] / path.name) == 24


@pytest.mark.figure("PX-3")
def test_a_killed_writer_loses_nothing_that_was_committed(
    figures: Figures, mounted_twice: tuple[Path, Path]
) -> None:
    path = mounted_twice[0] / "killed.db"
    make(path, "delete")
    least = 0
    for number in figures(ci=6, long=2_000):
        with start(path, f"w{number}", 10_000) as writer:
            assert writer.stdout is not None
            told = 0
            while told <= number % 5:
                writer.stdout.readline()
                told += 1
            writer.send_signal(signal.SIGKILL)
            told += len(writer.stdout.read().splitlines())
        least += told
        found = rows(path)
        assert least <= found <= least + 1, "the last one may have been committed and not told"
        least = found


def test_the_shell_of_sqlite(mounted_twice: tuple[Path, Path]) -> None:
    path = mounted_twice[0] / "shell.db"
    run("sqlite3", path, given="CREATE TABLE t (n);\nINSERT INTO t VALUES (1), (2);\nVACUUM;\n")
    run("sqlite3", path, f".backup '{path}.copy'")
    assert run("sqlite3", f"{path}.copy", "SELECT sum(n) FROM t") == "3\n"
    assert ".db-journal" not in "".join(entry.name for entry in path.parent.iterdir())
