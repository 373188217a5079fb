"""Names the processes that use a mount."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def holders(target: Path, mount: int, *, most: int, proc: Path = PROC) -> list[str]:
    """Name up to `most` processes that use mount id `mount` at `target`, as in `pid 7 (bash)`."""
    names: list[str] = []
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        if len(names) == most:
            break
        try:
            if _holds(process, str(target), mount):
                names.append(
                    f"pid {process.name} ({(process / 'comm').read_text(errors='replace').strip()})"
                )
        except OSError:
            continue  # the process has just ended
    return names


def _holds(process: Path, target: str, mount: int) -> bool:
    for link in ("cwd", "root", "exe"):
        try:
            place = os.readlink(process / link)
        except OSError:
            continue  # kernel threads and zombies have no such link
        if place == target or place.startswith(f"{target}/"):
            return True
    marker = f"mnt_id:\t{mount}"
    for info in (process / "fdinfo").glob("*"):
        try:
            if marker in info.read_text().splitlines():
                return True
        except FileNotFoundError:
            continue  # the descriptor was closed meanwhile
    mapped = (
        line.split(maxsplit=5)[5:]
        for line in (process / "maps").read_text(errors="replace").splitlines()
    )
    return any(name and name[0].startswith(f"{target}/") for name in mapped)
