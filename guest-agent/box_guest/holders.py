"""Who has something of a mount in use, for people."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def holders(target: Path, mount: int, *, most: int, proc: Path = PROC) -> list[str]:
    """At most `most` processes that use the mount with this id at `target`: `pid 7 (bash)`."""
    found: list[str] = []
    for process in sorted(proc.glob("[0-9]*"), key=lambda one: int(one.name)):
        if len(found) == most:
            break
        try:
            if _holds(process, str(target), mount):
                found.append(f"pid {process.name} ({(process / 'comm').read_text().strip()})")
        except OSError:
            continue  # it has just ended
    return found


def _holds(process: Path, target: str, mount: int) -> bool:
    for link in ("cwd", "root", "exe"):
        try:
            place = os.readlink(process / link)
        except OSError:
            continue  # kernel threads and zombies have none
        if place == target or place.startswith(f"{target}/"):
            return True
    marker = f"mnt_id:\t{mount}"
    for info in (process / "fdinfo").glob("*"):
        try:
            if marker in info.read_text().splitlines():
                return True
        except FileNotFoundError:
            continue  # closed meanwhile
    mapped = (line.split(maxsplit=5)[5:] for line in (process / "maps").read_text().splitlines())
    return any(name and name[0].startswith(f"{target}/") for name in mapped)
