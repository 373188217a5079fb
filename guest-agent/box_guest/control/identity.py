"""The identity of the box, and whether the box has become another one.

A box that is restored from another box's memory finds different files in its run directory when it
resumes. Its agent then restarts in the same process, the init of the box, so its children stay.
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
    """Snapshot of the identity files in the run directory."""

    def __init__(self, run_dir: Path) -> None:
        """Read the configuration and the host key in `run_dir`; a missing file counts as empty."""
        self._run_dir = run_dir
        self._files = (run_dir / protocol.AGENT_CONFIG, run_dir / protocol.HOST_KEY)
        # Stat before reading, so that a later check notices a write in between.
        self._stamps = self._stat()
        self._contents = self._read()

    def changed(self) -> bool:
        """Return whether the files have changed and are complete.

        Costs two system calls if the files are untouched.
        """
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
            return False  # another process is still writing them
        return (contents[1] or b"").rstrip().endswith(_KEY_END)

    def _stat(self) -> list[Stamp]:
        return [_stamp(path) for path in self._files]

    def _read(self) -> list[bytes | None]:
        return [_contents(path) for path in self._files]


def reexecute() -> NoReturn:
    """Re-execute this process's program. The process and its children stay; its memory does not.

    This takes ten times as long as creating a new agent in this process. Raises OSError.
    """
    os.execv("/proc/self/exe", _command_line())


def command_of(module: str) -> list[bytes]:
    """Return the command line that runs `module` with this process's interpreter and its options.

    Raises OSError, or ValueError if this process runs no module.
    """
    words = _command_line()
    return [*words[: words.index(b"-m") + 1], module.encode("ascii")]


def _command_line() -> list[bytes]:
    # Read the kernel's copy of the command line: a loader may have started the interpreter.
    return Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


def _contents(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
