"""Catalogs of images and flavors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """What a box can start from."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Flavor:
    """Hardware caps of a box: CPUs (fractions allowed), memory in MiB."""

    name: str
    description: str
    cpus: float
    mem_mb: int
