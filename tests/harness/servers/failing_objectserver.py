"""The object server with a disk that cannot keep what it is given.

`python -m tests.harness.servers.failing_objectserver CONFIGURATION` is the real server whose fsync
fails with EIO while there is a file `eio` in its directory.
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
    """The call, or EIO while the mark is there."""

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
