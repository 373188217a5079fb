"""A database of SQLite on a mount, with processes that write into it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import sqlite3, sys, time
path, name, rounds, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
database = sqlite3.connect(path, timeout=60, isolation_level=None)
for number in range(rounds):
    database.execute("BEGIN IMMEDIATE")
    (total,) = database.execute("SELECT total FROM sum").fetchone()
    database.execute("INSERT INTO entry (who, n, pad) VALUES (?, ?, ?)", (name, number, "x" * 300))
    database.execute("UPDATE sum SET total = ?", (total + 1,))
    database.execute("COMMIT")
    print(number, flush=True)
    time.sleep(pause)
"""
GIVES_WAY_S = 0.005
"""About as long as a transaction. SQLite asks for a busy lock only every 0.1 s, so a writer that
never pauses can keep another one waiting for half a minute."""


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


def start(path: Path, name: str, rounds: int, pause: float = 0.0) -> subprocess.Popen[str]:
    """A process that writes, with a pause of some seconds after each transaction."""
    command = [sys.executable, "-S", "-c", WRITER, str(path), name, str(rounds), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
