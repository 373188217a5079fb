"""Catalogs of images and flavors."""

from __future__ import annotations

from dataclasses import dataclass

from boxd.model.box import PIDS


@dataclass(frozen=True, slots=True)
class Image:
    """An image that boxes can start from. If `built` is false, the host must build it first."""

    name: str
    description: str
    built: bool = True


@dataclass(frozen=True, slots=True)
class Flavor:
    """Hardware limits of a box: CPUs (fractions allowed), memory and disk in MiB."""

    name: str
    description: str
    cpus: float
    mem_mb: int
    disk_mb: int = 0
    """MiB that the box may write besides its image and /wrk. 0: no limit."""
    pids: int = PIDS
    """Maximum number of processes and threads."""
    runtime: str = ""
    """Name of the OCI runtime of the boxes. Empty: the default of the backend."""
    containers: bool = False
    """Boxes have the rights in their own user namespace that Docker needs."""
    tiers: tuple[str, ...] = ()
    """The tiers whose owners may use the flavor. Empty: all."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form for owners, who do not see `tiers`."""
        return {
            "name": self.name,
            "description": self.description,
            "cpus": self.cpus,
            "mem_mb": self.mem_mb,
            "disk_mb": self.disk_mb,
            "pids": self.pids,
            "runtime": self.runtime,
            "containers": self.containers,
        }
