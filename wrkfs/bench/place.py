"""Where one client works: its directory, how much it does there, and what it unpacks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

THOUSAND = "thousand"
"""The directory that is listed, below `Place.lasting`."""


class WorkFailed(Exception):
    """A work could not be done in a directory."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each work one client does."""

    files: int
    """Files or directories of the metadata works."""
    entries: int
    """Entries of the directory that is listed."""
    mib: int
    """MiB of the large file."""
    fsyncs: int
    """Small writes, each followed by fsync."""
    tree: int
    """Files of the source tree that is unpacked."""
    clone: int
    """Files of the repository that is cloned."""
    wheels: int
    """Wheels that pip installs."""

    def shared_by(self, clients: int) -> Size:
        """The part of one client where so many do the same amount together."""
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
    """What the works that unpack something take it from; lies outside of what is measured."""

    archive: str
    repository: str
    files: int
    """Files of the archive."""
    cloned: int
    """Files of the repository."""
    wheels: tuple[str, ...]
    wheel_files: int
    no_wheels: str = ""
    """Why there are none."""


@dataclass(frozen=True, slots=True)
class Place:
    """One client in one repetition."""

    directory: Path
    """Empty at first."""
    lasting: Path
    """Kept from one repetition to the next, for what is only read."""
    size: Size
    material: Material
    stem: str = ""
    """Begins the names in `directory`, where it is not empty."""

    def names(self, kind: str) -> list[str]:
        """The paths of the files of one kind."""
        return [str(self.directory / f"{self.stem}{kind}{n}") for n in range(self.size.files)]

    def path(self, name: str) -> Path:
        """One path."""
        return self.directory / f"{self.stem}{name}"


def place_from(values: dict[str, Any]) -> Place:
    """A place that came through JSON."""
    material = values["material"]
    return Place(
        directory=Path(values["directory"]),
        lasting=Path(values["lasting"]),
        size=Size(**values["size"]),
        material=Material(**material | {"wheels": tuple(material["wheels"])}),
        stem=values["stem"],
    )


def place_values(place: Place) -> dict[str, Any]:
    """The same for JSON."""
    size, material = place.size, place.material
    return {
        "directory": str(place.directory),
        "lasting": str(place.lasting),
        "size": {name: getattr(size, name) for name in Size.__slots__},
        "material": {name: getattr(material, name) for name in Material.__slots__},
        "stem": place.stem,
    }
