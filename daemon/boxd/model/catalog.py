"""Catalogs of images and flavors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """What a box can start from; at once when it is `built` on this host."""

    name: str
    description: str
    built: bool = True


@dataclass(frozen=True, slots=True)
class Flavor:
    """Hardware caps of a box: CPUs (fractions allowed), memory in MiB."""

    name: str
    description: str
    cpus: float
    mem_mb: int
