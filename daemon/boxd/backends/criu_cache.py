"""What CRIU has found out about the kernel, where every CRIU of this host looks for it first.

CRIU looks at the kernel whenever it begins, unless an earlier one has left PLACE, which it does
on a tmpfs only: a file there does not outlive the kernel that it tells of. On most hosts /run is
one. On others the service has CRIU look once, where it believes that it is, and keeps what it
found at PLACE until it ends; what a crash and another kernel have left there is taken away before
CRIU is asked anything. *Measured* for the dump of a small process on a busy host: 48 ms, not 149.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from boxd.backends.mounts import kind_at
from boxd.backends.run import run_silent
from boxd.errors import BoxdError

PLACE = Path("/run/criu.kdat")
_LOOK = 'umask 077; exec 3>"$1"; mount -t tmpfs criu /run; "$0" check; cat "$2" >&3'
_TIMEOUT = 20.0
_log = logging.getLogger(__name__)


async def keep(program: Path, place: Path = PLACE) -> None:
    """Has `program`, a CRIU, find what it knows of this kernel. What fails costs time only."""
    if _keeps_itself(place):
        return
    new = place.with_name(f"{place.name}.{os.getpid()}")
    alone = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _LOOK)
    try:
        try:
            await run_silent(*alone, str(program), str(new), str(PLACE), timeout=_TIMEOUT)
            if new.stat().st_size:
                new.rename(place)
        finally:
            new.unlink(missing_ok=True)
    except (BoxdError, OSError) as error:
        _log.info("CRIU looks at the kernel each time: %s", error)


def drop(place: Path = PLACE, *, only_old: bool = False) -> None:
    """Takes away what `keep` has left; `only_old`: if it is of before this start of the host.

    No error if there is nothing. OSError.
    """
    if _keeps_itself(place):
        return
    try:
        if not only_old or place.stat().st_mtime < _started():
            place.unlink()
    except FileNotFoundError:
        return


def _keeps_itself(place: Path) -> bool:
    return kind_at(place.parent, Path("/proc/self/mountinfo")) == "tmpfs"


def _started() -> float:
    """When the kernel began, in seconds of the present wall clock."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))
