"""The process inside the self-test's box: its memory shows whether the restore worked.

The self-test runs it as a plain script with Python's `-I -S`, in the box's root directory. The
script imports only the standard library. Every 10 ms it replaces the file `state` with a JSON
object. The object has its `pid`, a `nonce` that it drew once, a `count` that grows, and `seen`.
`seen` lists the files created in the WATCHED directories since the process started.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import time
from pathlib import Path

WATCHED = ("watched", "wrk")
"""One directory on the root of the box, and one on a mount."""
PAUSE = 0.01
_IN_CREATE = 0x100
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


def _watch() -> tuple[int, dict[int, str]]:
    """Return the inotify descriptor, and the directory of each watch."""
    descriptor = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    places = {
        _libc.inotify_add_watch(descriptor, place.encode(), _IN_CREATE): place for place in WATCHED
    }
    if descriptor < 0 or min(places) < 0:
        raise OSError(ctypes.get_errno(), "inotify")
    return descriptor, places


def _appeared(descriptor: int, places: dict[int, str]) -> list[str]:
    try:
        data = os.read(descriptor, 65536)
    except BlockingIOError:
        return []
    names = []
    while data:
        watch, _, _, length = _EVENT.unpack_from(data)
        name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
        names.append(f"{places[watch]}/{os.fsdecode(name)}")
        data = data[_EVENT.size + length :]
    return names


def main() -> None:
    """Run until killed."""
    descriptor, places = _watch()
    state = {"pid": os.getpid(), "nonce": os.urandom(8).hex()}
    file_names: list[str] = []
    count = 0
    while True:
        count += 1
        file_names += _appeared(descriptor, places)
        Path("state.new").write_text(json.dumps({**state, "count": count, "seen": file_names}))
        Path("state.new").replace("state")
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
