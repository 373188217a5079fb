"""A database of SQLite on a mount, with processes that write into it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
