"""SQLite with a rollback journal: two processes on one mount, one of them killed at times."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.mount.programs.programs import run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.figures import Figures

WRITER = """
import sqlite3, sys
path, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = sqlite3.connect(path, timeout=60, isolation_level=None)
for number in range(rounds):
    database.execute("BEGIN IMMEDIATE")
    (total,) = database.execute("SELECT total FROM sum").fetchone()
    database.execute("INSERT INTO entry (who, n, pad) VALUES (?, ?, ?)", (name, number, "x" * 300))
    database.execute("UPDATE sum SET total = ?", (total + 1,))
    database.execute("COMMIT")
    print(number, flush=True)
"""


def make(path: Path, mode: str) -> None:
    """A database with an empty table, and how many rows it has."""
    database = sqlite3.connect(path)
    assert database.execute(f"PRAGMA journal_mode = {mode}").fetchone() == (mode,)
    database.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, who TEXT, n INTEGER, pad TEXT)")
    database.execute("CREATE INDEX who ON entry (who, n)")
    database.execute("CREATE TABLE sum (total INTEGER)")
    database.execute("INSERT INTO sum VALUES (0)")
    database.commit()
    database.close()


def rows(path: Path) -> int:
    """How many rows a sound database holds."""
    database = sqlite3.connect(path, timeout=60)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    counted, total = database.execute(
        "SELECT (SELECT count(*) FROM entry), (SELECT total FROM sum)"
    ).fetchone()
    assert counted == total
    database.close()
    return int(counted)


def start(path: Path, name: str, rounds: int) -> subprocess.Popen[str]:
    """A process that writes."""
    command = [sys.executable, "-S", "-c", WRITER, str(path), name, str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


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
