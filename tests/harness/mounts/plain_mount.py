"""The mount process as with pyfuse3 from PyPI: `python -m tests.harness.mounts.plain_mount`.

That version passes no request for ranges, unnamed files and locks. libfuse then answers them with
ENOSYS, which is what a handler of pyfuse3 does that nothing overrides.
"""

from __future__ import annotations

import errno
import sys
from typing import NoReturn

import pyfuse3

from box_guest.mount.__main__ import main
from box_guest.mount.operations import Operations
from tests.harness.mounts.drive import MountProcess

HANDLERS = ("lseek", "fallocate", "copy_file_range", "tmpfile")


class PlainMount(MountProcess):
    """A mount process whose binding passes none of `HANDLERS`."""

    PROGRAM = "tests.harness.mounts.plain_mount"
    LOADED = False


async def _missing(*_arguments: object) -> NoReturn:
    raise pyfuse3.FUSEError(errno.ENOSYS)


if __name__ == "__main__":
    for name in HANDLERS:
        setattr(Operations, name, _missing)
    Operations.enable_posix_locks = Operations.enable_flock = False
    sys.exit(main())
