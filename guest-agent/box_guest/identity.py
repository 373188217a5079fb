"""Who the box is, and that it has become another one.

A box that was copied from the memory of another finds other files in its run directory when it goes
on. Its agent then begins again in the same process, the first one of the box: its children stay.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from box_guest import config, protocol
from box_guest.errors import ConfigError

if TYPE_CHECKING:
    from typing import NoReturn

    Stamp: TypeAlias = tuple[int, int, int, int] | None


_KEY_END = b"-----END OPENSSH PRIVATE KEY-----"


class Identity:
    """The files of the run directory as they were when this was made."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._files = (run_dir / protocol.AGENT_CONFIG, run_dir / protocol.HOST_KEY)
        # In this order: what is written in between is noticed later.
        self._stamps = self._stat()
        self._contents = self._read()

    def changed(self) -> bool:
        """Whether they say something else by now, and are whole. Costs two calls of the kernel
        when nobody touched them."""
        stamps = self._stat()
        if stamps == self._stamps:
            return False
        contents = self._read()
        if contents == self._contents:
            self._stamps = stamps
            return False
        try:
            config.load(self._run_dir)
        except ConfigError:
            return False  # they are just being written
        return (contents[1] or b"").rstrip().endswith(_KEY_END)

    def _stat(self) -> list[Stamp]:
        return [_stamp(path) for path in self._files]

    def _read(self) -> list[bytes | None]:
        return [_contents(path) for path in self._files]


def execute_anew() -> NoReturn:
    """Replaces this process's program by itself: the same process with the same children, and
    nothing of its memory. Ten times as slow as beginning again. Raises OSError."""
    os.execv("/proc/self/exe", _command_line())  # noqa: S606 - no shell is wanted


def command_of(module: str) -> list[bytes]:
    """The command line that runs another module with the interpreter of this process, started in
    the same way. Raises OSError, or ValueError when this process runs no module."""
    words = _command_line()
    return [*words[: words.index(b"-m") + 1], module.encode("ascii")]


def _command_line() -> list[bytes]:
    # The kernel's own words: the interpreter may have been started by a loader.
    return Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size


def _contents(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
