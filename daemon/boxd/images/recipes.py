"""The catalogs as data: `images.toml` and `flavors.toml`, read, merged and checked.

The operator's files of these names stand in the state directory and say the same things in the same
form. An entry replaces the shipped one of its name as a whole; what stands above the entries
(`suite`, `default`) need not be there.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

from boxd.errors import BadName, Unavailable
from boxd.model.catalog import Flavor
from boxd.names.words import parse_name, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IMAGES_FILE = "images.toml"
FLAVORS_FILE = "flavors.toml"
LEAST_MEM_MB = 64
"""The agent alone takes up to 40."""
LEAST_PIDS = 16
LONGEST_DESCRIPTION = 200

_Parsed = TypeVar("_Parsed")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_BASE = re.compile(r"[a-z0-9-]+")
_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_SUITE = re.compile(r"[a-z][a-z0-9-]*")


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


@dataclass(frozen=True, slots=True)
class Flavors:
    """The flavor catalog."""

    default: str
    by_name: dict[str, Flavor]


def parse_recipes(text: str, own: str = "") -> Recipes:
    """Reads images.toml, and the operator's over it. ValueError says what is wrong, and where."""
    data = _merged(text, own, "images", {"suite", "default"})
    entries = {name: _image(name, raw) for name, raw in data["images"].items()}
    _matching(_SUITE, data["suite"], "suite")
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
    return Recipes(_default(data, recipes, "image"), recipes)


def parse_flavors(text: str, own: str = "") -> Flavors:
    """Reads flavors.toml, and the operator's over it. ValueError says what is wrong, and where."""
    data = _merged(text, own, "flavors", {"default"})
    flavors = {name: _flavor(name, raw) for name, raw in data["flavors"].items()}
    return Flavors(_default(data, flavors, "flavor"), flavors)


def load_recipes(own: Path | None = None) -> Recipes:
    """The shipped image catalog, with the file `own` over it if there is one.

    Unavailable names the file and what is wrong in it.
    """
    return _loaded(IMAGES_FILE, own, parse_recipes)


def load_flavors(own: Path | None = None) -> Flavors:
    """The same of flavors."""
    return _loaded(FLAVORS_FILE, own, parse_flavors)


def _loaded(name: str, own: Path | None, parse: Callable[[str, str], _Parsed]) -> _Parsed:
    shipped = resources.files("boxd.images").joinpath(name).read_text(encoding="utf-8")
    if own is None or not own.exists():
        return parse(shipped, "")
    try:
        return parse(shipped, own.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unavailable(f"the catalog file {own} cannot be used: {error}") from None


def _merged(text: str, own: str, table: str, single: set[str]) -> dict[str, Any]:
    data: dict[str, Any] = tomllib.loads(text)
    more = tomllib.loads(own)
    unknown = sorted(more.keys() - single - {table})
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not known here; known: {table}, {_listed(single)}")
    entries = more.pop(table, {})
    if not isinstance(entries, dict):
        raise ValueError(f"{table!r} must be a table with one table for each of them")
    return data | more | {table: data[table] | entries}


def _image(name: str, raw: object) -> dict[str, Any]:
    where = f"image {name!r}"
    entry = _entry(name, raw, where, {"description", "packages", "programs"}, {"base"})
    _text(entry, where)
    _matching(_BASE, entry.get("base", "none"), f"{where}: base")
    for key, pattern in (("packages", _PACKAGE), ("programs", _PROGRAM)):
        if not isinstance(entry[key], list):
            raise ValueError(f"{where}: {key!r} must be a list of names")
        for word in entry[key]:
            _matching(pattern, word, f"{where}: {key}")
    return entry


def _flavor(name: str, raw: object) -> Flavor:
    where = f"flavor {name!r}"
    numbers = {"cpus": 0.01, "mem_mb": LEAST_MEM_MB, "disk_mb": 0, "pids": LEAST_PIDS}
    entry = _entry(name, raw, where, {"description", *numbers}, set())
    _text(entry, where)
    for key, least in numbers.items():
        kinds = (int, float) if key == "cpus" else (int,)
        value = entry[key]
        if type(value) not in kinds or not least <= value < 2**31:
            kind = "a number" if key == "cpus" else "a whole number"
            raise ValueError(f"{where}: {key!r} must be {kind} from {least}, not {value!r}")
    cpus = float(entry["cpus"])
    return Flavor(
        name, entry["description"], cpus, entry["mem_mb"], entry["disk_mb"], entry["pids"]
    )


def _entry(
    name: str, raw: object, where: str, wanted: set[str], optional: set[str]
) -> dict[str, Any]:
    try:
        if parse_name(name) != name:
            raise ValueError(f"{where}: names are in lower case")
    except BadName as error:
        raise ValueError(str(error)) from None
    if not isinstance(raw, dict):
        raise ValueError(f"{where} must be a table")
    for key in sorted(wanted - raw.keys()):
        raise ValueError(f"{where}: {key!r} is missing")
    for key in sorted(raw.keys() - wanted - optional):
        known = _listed(wanted | optional)
        raise ValueError(f"{where}: {key!r} is not known here; known: {known}")
    return raw


def _text(entry: dict[str, Any], where: str) -> None:
    text = entry["description"]
    if not isinstance(text, str) or not text.isprintable() or len(text) > LONGEST_DESCRIPTION:
        most = f"at most {LONGEST_DESCRIPTION} characters"
        raise ValueError(f"{where}: 'description' must be one line of {most}")


def _matching(pattern: re.Pattern[str], word: object, what: str) -> None:
    if not isinstance(word, str) or pattern.fullmatch(word) is None:
        raise ValueError(f"{what}: {shown(str(word))} is not a valid name")


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


def _default(data: dict[str, Any], known: dict[str, Any], what: str) -> str:
    default = data["default"]
    if not isinstance(default, str) or default not in known:
        raise ValueError(f"the default {what} {default!r} is not in the catalog")
    return default


def _listed(words: set[str]) -> str:
    return ", ".join(sorted(words))
