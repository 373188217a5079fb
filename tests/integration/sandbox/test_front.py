"""A process in the sandbox of the front starts threads, but no other process."""

from __future__ import annotations

import subprocess
import sys

TIMEOUT_S = 60.0
PROGRAM = """
import ctypes, errno, os, sys, threading
from boxd.sandbox import enter
from boxd.sandbox.sandbox import Sandbox

over = threading.Event()
other = threading.Thread(target=over.wait)
other.start()
document = Sandbox(1_000_001, "front").document()
try:
    enter.enter(document)
except OSError as error:
    print("threads:", errno.errorcode[error.errno])
over.set()
other.join()
enter.enter(document)
for name in ("fork", "vfork"):
    try:
        getattr(os, name, os.fork)()
    except PermissionError:
        print(name, "refused")
try:
    os.execv("/bin/true", ["true"])
except PermissionError:
    print("exec refused")
libc = ctypes.CDLL(None, use_errno=True)
print("new namespace", libc.unshare(0x10000000), errno.errorcode[ctypes.get_errno()])
thread = threading.Thread(target=lambda: print("a thread runs"))
thread.start()
thread.join()
print(os.getresuid(), os.getgroups(), sorted(os.listdir("/")))
"""


def test_the_rights_of_the_front() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:5] == [
        "threads: EBUSY",
        "fork refused",
        "vfork refused",
        "exec refused",
        "new namespace -1 EPERM",
    ]
    assert lines[5] == "a thread runs"
    assert lines[6].startswith("(1000001, 1000001, 1000001) []")
    assert "var" not in lines[6]
