"""What CRIU has found out about the kernel, where every CRIU of this host finds it.

CRIU looks at the kernel when it begins, unless an earlier one has left PLACE, which it does only
on a tmpfs: that does not outlive the kernel it tells of. On most hosts /run is one. On others the
service has CRIU look once where it is, and binds what was found to the name; that ends with the
kernel, too. *Measured* for a whole dump of a small process on a busy host: 48 ms instead of 149.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from boxd.backends.mounts import bind_file, kind_at, unbind_file
from boxd.backends.run import run_silent
from boxd.errors import BoxdError

PLACE = Path("/run/criu.kdat")
KEPT = "criu.kdat"
"""In the state directory: what is bound to it."""
_LOOK = 'mount -t tmpfs criu /run; "$0" check; cp "$1" "$2"'
_TIMEOUT = 20.0
_log = logging.getLogger(__name__)


async def keep(program: Path, state_dir: Path, place: Path = PLACE) -> None:
    """Has `program`, a CRIU, find what it knows of this kernel. What fails costs time only."""
    if kind_at(place.parent, Path("/proc/self/mountinfo")) == "tmpfs":
        return
    found = state_dir / KEPT
    try:
        found.unlink(missing_ok=True)
        drop(place)  # it may be another program's
        alone = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _LOOK)
        await run_silent(*alone, str(program), str(PLACE), str(found), timeout=_TIMEOUT)
        if found.exists() and found.stat().st_size:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            bind_file(found, place)
    except (BoxdError, OSError) as error:
        _log.info("CRIU looks at the kernel each time: %s", error)


def drop(place: Path = PLACE) -> None:
    """Takes away what `keep` has bound. No error if there is nothing. OSError."""
    if unbind_file(place):
        place.unlink(missing_ok=True)
