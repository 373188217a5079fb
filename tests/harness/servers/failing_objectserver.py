"""The object server with a failing disk.

`python -m tests.harness.servers.failing_objectserver CONFIGURATION` is the real server. While its
directory contains a file `eio`, its fsync fails with EIO.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from objectserver.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Callable


def failing(call: Callable[[int], None], mark: Path) -> Callable[[int], None]:
    """Return a call that fails with EIO while the mark exists."""

    def sync(descriptor: int) -> None:
        if mark.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        call(descriptor)

    return sync


if __name__ == "__main__":
    mark = Path(sys.argv[1]).parent / "eio"
    for name in ("fsync", "fdatasync"):
        setattr(os, name, failing(getattr(os, name), mark))
    sys.exit(main(sys.argv[1:]))
