"""Tells which files of a drive are there. Runs as its own process.

A process and not a thread: one that hangs on a dead file system can be killed. It is run as a bare
script with Python's `-I -S`, so it imports nothing but the standard library.

It reads one JSON object from its standard input: `root`, a directory, and `names`, paths below it
(bytes as Latin-1). It prints a list of the same length: the type of each (as in `st_mode`), 0 when
there is none. No symbolic link is followed: what is behind one counts as gone.
"""

from __future__ import annotations

import json
import os
import stat
import sys


def look(root: int, name: bytes) -> int:
    """The type of what a name below the directory `root` stands for; 0 when it is gone."""
    parts = [part for part in name.split(b"/") if part]
    here = os.dup(root)
    try:
        for part in parts:
            there = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = there
        return stat.S_IFMT(os.fstat(here).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    finally:
        os.close(here)


def main() -> None:
    """Answers one request; see the module's text."""
    request = json.load(sys.stdin)
    root = os.open(request["root"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = [look(root, name.encode("latin-1")) for name in request["names"]]
    finally:
        os.close(root)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
