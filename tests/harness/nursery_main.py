"""A program that is loaded once and forked for each start; see `tests.harness.nursery`.

`python -m tests.harness.nursery_main PADDING MODULE [MORE ...]` receives requests through the
socket that is its standard input. It loads the same modules as the program and nothing else. The
padding leaves room for the command line of a started program.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import socket
import sys
from contextlib import suppress
from pathlib import Path

MOST = 1 << 17
"""Bytes of a request: arguments and environment."""
MOST_DESCRIPTORS = 16
HIGH = 900
"""A nursery does not use descriptors from this number on."""


def _serve(control: socket.socket) -> list[str] | None:
    """Fork a process for each request, and return its arguments in it.

    Returns None when the other end closes the socket.
    """
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, MOST, MOST_DESCRIPTORS)
        if not text:
            return None
        request = json.loads(text)
        reader, writer = os.pipe()
        first = os.fork()
        if first == 0:
            intermediate = os.getpid()
            second = os.fork()
            if second:
                os.write(writer, b"%d" % second)
                os._exit(0)
            _wait_for_end(intermediate)
            _become(request, descriptors)
            return list(request["arguments"])
        os.close(writer)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(first, 0)
        with os.fdopen(reader, "rb") as answer:
            control.send(answer.read())


def _wait_for_end(parent: int) -> None:
    """Wait for the end of the parent. The test's process is then the parent."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(parent)
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.poll()
        os.close(handle)


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    """Give this process the descriptors and the environment of a start, and nothing else."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH) for descriptor in descriptors]
    os.closerange(3, HIGH)
    numbers, environment = request["numbers"], request["environment"]
    assert isinstance(numbers, list)
    assert isinstance(environment, dict)
    for source, number in zip(high, numbers, strict=True):
        os.dup2(source, number)
        os.close(source)
    os.chdir(str(request["directory"]))
    os.environ.clear()
    os.environ.update(environment)
    if request["new_session"]:
        os.setsid()


def _be_called(line: bytes) -> None:
    """Replace the command line of this process, which is that of the nursery.

    Its last byte stays, so the kernel reads the line up to the first NUL.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    room = end - begin - 1
    ctypes.memmove(begin, line[: room - 1].ljust(room, b"\0"), room)
    ctypes.memset(end - 1, ord("."), 1)


def main() -> None:
    """Serve requests, and run the program in each forked process."""
    _, _, module, *more = sys.argv
    package = importlib.util.find_spec(f"{module}.__main__") if _is_package(module) else None
    entry = package.name if package else module
    for name in (entry, *more):
        importlib.import_module(name)
    # The program itself runs as `__main__`.
    del sys.modules[entry]
    gc.collect()
    gc.freeze()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{module} starts threads when it is loaded"
    control = socket.socket(fileno=os.dup(0))
    control.send(b"loaded")
    arguments = _serve(control)
    if arguments is None:
        return
    _be_called(os.fsencode(" ".join((sys.executable, "-m", module, *arguments))))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _is_package(module: str) -> bool:
    found = importlib.util.find_spec(module)
    return found is not None and found.submodule_search_locations is not None


if __name__ == "__main__":
    main()
