"""Catalogs of images and flavors."""

from __future__ import annotations

from dataclasses import dataclass

from boxd.model.box import PIDS


@dataclass(frozen=True, slots=True)
class Image:
    """What a box can start from; at once when it is `built` on this host."""

    name: str
    description: str
    built: bool = True


@dataclass(frozen=True, slots=True)
class Flavor:
    """Hardware caps of a box: CPUs (fractions allowed), memory and disk in MiB."""

    name: str
    description: str
    cpus: float
    mem_mb: int
    disk_mb: int = 0
    """What the box may write beside its image and /wrk; 0: no cap."""
    pids: int = PIDS
    """Processes and threads."""
