"""The place of one client: its directory, the size of its workloads, and their material."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
    project: int
    """Number of files of the project of the real works."""
    packages: int
    """Number of packages that npm installs."""
    transactions: int
    """Number of transactions of the database."""

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
            project=max(1, self.project // clients),
            packages=max(1, self.packages // clients),
            transactions=max(1, self.transactions // clients),
        )


FULL = Size(
    files=1000,
    entries=1000,
    mib=1024,
    fsyncs=200,
    tree=5000,
    clone=1000,
    wheels=20,
    project=1000,
    packages=20,
    transactions=500,
)
QUICK = Size(
    files=40,
    entries=250,
    mib=16,
    fsyncs=10,
    tree=80,
    clone=80,
    wheels=1,
    project=80,
    packages=2,
    transactions=10,
)


@dataclass(frozen=True, slots=True)
class Project:
    """Paths of the project of the real works, outside the measured directories."""

    archive: str
    """Compressed archive of the project."""
    repository: str
    """Packed repository of the project."""
    files: int
    """Number of files in the archive, and in a checkout of the repository."""
    packages: str = ""
    """Directory with package.json, package-lock.json and a filled cache of npm; "" if none."""
    package_files: int = 0
    """Number of files that npm installs."""
    no_packages: str = ""
    """The reason if there are no packages."""


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
    project: Project | None = None
    """Material of the real works. None if no real work is selected."""


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
    project = material["project"]
    paths = {
        "wheels": tuple(material["wheels"]),
        "project": None if project is None else Project(**project),
    }
    return Place(
        directory=Path(values["directory"]),
        lasting=Path(values["lasting"]),
        size=Size(**values["size"]),
        material=Material(**material | paths),
        stem=values["stem"],
    )


def place_values(place: Place) -> dict[str, Any]:
    """Return the JSON values of a place."""
    return {
        "directory": str(place.directory),
        "lasting": str(place.lasting),
        "size": asdict(place.size),
        "material": asdict(place.material),
        "stem": place.stem,
    }
