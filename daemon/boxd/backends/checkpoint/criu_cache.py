"""Caches the results of CRIU's kernel checks for all runs of CRIU on this host.

CRIU inspects the kernel at each start, unless an earlier run has left its result at PLACE. CRIU
writes PLACE only on a tmpfs, so that the file cannot outlive the kernel that it describes. On most
hosts /run is a tmpfs. On others, the service runs CRIU once in a mount namespace with a tmpfs at
/run, and copies the result to PLACE. The service removes PLACE when it ends. Before it first runs
CRIU, it also removes a file left by a crash under another kernel. *Measured* for the dump of a
small process on a busy host: 48 ms instead of 149.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from boxd.backends.host.mounts import kind_at
from boxd.backends.host.run import run_silent
from boxd.errors import BoxdError

PLACE = Path("/run/criu.kdat")
_LOOK = 'umask 077; exec 3>"$1"; mount -t tmpfs criu /run; "$0" check; cat "$2" >&3'
_TIMEOUT = 20.0
_log = logging.getLogger(__name__)


async def keep(program: Path, place: Path = PLACE) -> None:
    """Make CRIU inspect this kernel, and store the result. A failure only costs time."""
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
        _log.info("CRIU inspects the kernel at each start: %s", error)


def drop(place: Path = PLACE, *, only_old: bool = False) -> None:
    """Remove the file of `keep`. With `only_old`, only if it is older than this boot of the host.

    No error if there is none. Raises OSError.
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
    """Return when the kernel booted, in seconds of the current wall clock."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))
