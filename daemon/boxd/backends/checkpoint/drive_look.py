"""Checks which files of a drive exist. Runs as a separate process.

A process can be killed when it hangs on a dead file system; a thread cannot. The process runs a
plain script with Python's `-I -S`, so it imports only the standard library.

The script reads one JSON object from its standard input: `root`, a directory, and `names`, paths
below it (bytes as Latin-1). It prints a list of the same length: the type of each file (as in
`st_mode`), or 0 if it does not exist. It follows no symbolic link: a file behind one counts as
missing.
"""

from __future__ import annotations

import json
import os
import stat
import sys


def look(root: int, name: bytes) -> int:
    """Return the type of the file `name` below the directory `root`, or 0 if it does not exist."""
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
    """Answer one request from the standard input."""
    request = json.load(sys.stdin)
    root = os.open(request["root"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kinds = [look(root, name.encode("latin-1")) for name in request["names"]]
    finally:
        os.close(root)
    sys.stdout.write(json.dumps(kinds))


if __name__ == "__main__":
    main()
