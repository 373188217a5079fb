"""The catalogs as data: `images.toml` and `flavors.toml`, read and checked."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from boxd.errors import UnknownImage
from boxd.model.catalog import Flavor


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image is made of; `packages` and `programs` include those of its bases."""

    name: str
    description: str
    suite: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Changes when the recipe does."""
        text = json.dumps([self.suite, self.packages])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Recipes:
    """The image catalog. `default` names the image that `make up` builds."""

    default: str
    by_name: dict[str, Recipe]

    def get(self, name: str) -> Recipe:
        """Raises UnknownImage, which names what there is."""
        if name not in self.by_name:
            known = ", ".join(self.by_name)
            raise UnknownImage(f"there is no image {name!r}; the catalog has {known}")
        return self.by_name[name]


@dataclass(frozen=True, slots=True)
class Flavors:
    """The flavor catalog."""

    default: str
    by_name: dict[str, Flavor]


def parse_recipes(text: str) -> Recipes:
    """Reads images.toml. Raises ValueError for a base that is unknown or leads in a circle."""
    data = tomllib.loads(text)
    entries: dict[str, dict[str, Any]] = data["images"]
    recipes = {}
    for name, entry in entries.items():
        line = _lineage(name, entries)
        recipes[name] = Recipe(
            name=name,
            description=entry["description"],
            suite=data["suite"],
            packages=tuple(sorted({p for ancestor in line for p in ancestor["packages"]})),
            programs=tuple(sorted({p for ancestor in line for p in ancestor["programs"]})),
        )
    if data["default"] not in recipes:
        raise ValueError(f"the default image {data['default']!r} is not in the catalog")
    return Recipes(data["default"], recipes)


def _lineage(name: str, entries: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    line: list[dict[str, Any]] = []
    current: str | None = name
    while current is not None:
        if current not in entries:
            raise ValueError(f"image {name!r} has the base {current!r}, which is not there")
        if len(line) > len(entries):
            raise ValueError(f"the bases of image {name!r} lead in a circle")
        line.append(entries[current])
        current = entries[current].get("base")
    return line


def parse_flavors(text: str) -> Flavors:
    """Reads flavors.toml. Raises ValueError when the default is not in it."""
    data = tomllib.loads(text)
    flavors = {
        name: Flavor(name, entry["description"], float(entry["cpus"]), int(entry["mem_mb"]))
        for name, entry in data["flavors"].items()
    }
    if data["default"] not in flavors:
        raise ValueError(f"the default flavor {data['default']!r} is not in the catalog")
    return Flavors(data["default"], flavors)


def load_recipes() -> Recipes:
    """The shipped image catalog."""
    return parse_recipes(resources.files("boxd.images").joinpath("images.toml").read_text())


def load_flavors() -> Flavors:
    """The shipped flavor catalog."""
    return parse_flavors(resources.files("boxd.images").joinpath("flavors.toml").read_text())
