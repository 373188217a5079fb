"""A program that tells how it was started: for `test_nursery.py`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    told = {
        "arguments": sys.argv[1:],
        "line": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode(),
        "directory": os.getcwd(),
        "word": os.environ.get("WORD"),
        "parent": os.getppid(),
        "leads": os.getsid(0) == os.getpid(),
        "input": sys.stdin.read(),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "passed": os.read(int(sys.argv[1]), 100).decode(),
    }
    print(json.dumps(told))
    print("an error", file=sys.stderr)
    sys.exit(3)
