"""The place of one client: its directory, the size of its workloads, and their material."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

LISTED = "thousand"
"""Name of the directory that `readdir` lists, below `Place.lasting`."""


class WorkloadFailed(Exception):
    """A workload failed in a directory."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the workloads of one client."""

    files: int
    """Number of files or directories of the metadata workloads."""
    entries: int
    """Number of entries of the listed directory."""
    mib: int
    """Size of the large file in MiB."""
    fsyncs: int
    """Number of small writes, each with fsync."""
    tree: int
    """Number of files of the source tree that tar unpacks."""
    clone: int
    """Number of files of the repository that git clones."""
    wheels: int
    """Number of wheels that pip installs."""

    def shared_by(self, clients: int) -> Size:
        """Return the share of each client if `clients` clients together do the same amount."""
        return Size(
            files=max(1, self.files // clients),
            entries=max(1, self.entries // clients),
            mib=max(1, self.mib // clients),
            fsyncs=max(1, self.fsyncs // clients),
            tree=max(1, self.tree // clients),
            clone=max(1, self.clone // clients),
            wheels=max(1, self.wheels // clients),
        )


FULL = Size(files=1000, entries=1000, mib=1024, fsyncs=200, tree=5000, clone=1000, wheels=20)
QUICK = Size(files=40, entries=250, mib=16, fsyncs=10, tree=80, clone=80, wheels=1)


@dataclass(frozen=True, slots=True)
class Material:
    """Paths of archive, repository and wheels, outside the measured directories."""

    archive: str
    repository: str
    files: int
    """Number of files in the archive."""
    cloned: int
    """Number of files in the repository."""
    wheels: tuple[str, ...]
    wheel_files: int
    no_wheels: str = ""
    """The reason if there are no wheels."""


@dataclass(frozen=True, slots=True)
class Place:
    """One client in one repetition."""

    directory: Path
    """Directory of this repetition, empty at its start."""
    lasting: Path
    """Directory for all repetitions, with files that workloads only read."""
    size: Size
    material: Material
    stem: str = ""
    """Prefix of the names in `directory`, if it is not empty at the start."""

    def names(self, kind: str) -> list[str]:
        """Return the paths of the files of one kind."""
        return [str(self.directory / f"{self.stem}{kind}{n}") for n in range(self.size.files)]

    def path(self, name: str) -> Path:
        """Return the path of a name in `directory`."""
        return self.directory / f"{self.stem}{name}"


def place_from(values: dict[str, Any]) -> Place:
    """Return a place from its JSON values."""
    material = values["material"]
    return Place(
        directory=Path(values["directory"]),
        lasting=Path(values["lasting"]),
        size=Size(**values["size"]),
        material=Material(**material | {"wheels": tuple(material["wheels"])}),
        stem=values["stem"],
    )


def place_values(place: Place) -> dict[str, Any]:
    """Return the JSON values of a place."""
    size, material = place.size, place.material
    return {
        "directory": str(place.directory),
        "lasting": str(place.lasting),
        "size": {name: getattr(size, name) for name in Size.__slots__},
        "material": {name: getattr(material, name) for name in Material.__slots__},
        "stem": place.stem,
    }
