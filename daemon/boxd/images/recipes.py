"""Reads, merges and checks the catalogs `images.toml` and `flavors.toml`.

The operator's files of these names in the state directory have the same format. An entry replaces
the shipped entry of that name completely. The keys above the entries (`suite`, `default`) are
optional.
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
MIN_MEM_MB = 64
"""The agent alone uses up to 40 MiB."""
MIN_PIDS = 16
MAX_DESCRIPTION = 200
"""Maximum length of a description, in characters."""

_Parsed = TypeVar("_Parsed")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_BASE = re.compile(r"[a-z0-9-]+")
_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_SUITE = re.compile(r"[a-z][a-z0-9-]*")
_RUNTIME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The content of an image. `packages` and `programs` include those of its bases."""

    name: str
    description: str
    suite: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A digest that changes with the recipe."""
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
    """Parse images.toml and the operator's file `own`.

    Raises ValueError with the error and its place.
    """
    data = _merge(text, own, "images", {"suite", "default"})
    entries = {name: _image(name, raw) for name, raw in data["images"].items()}
    _matching(_SUITE, data["suite"], "suite")
    recipes = {}
    for name, entry in entries.items():
        lineage = _lineage(name, entries)
        recipes[name] = Recipe(
            name=name,
            description=entry["description"],
            suite=data["suite"],
            packages=tuple(sorted({p for ancestor in lineage for p in ancestor["packages"]})),
            programs=tuple(sorted({p for ancestor in lineage for p in ancestor["programs"]})),
        )
    return Recipes(_default(data, recipes, "image"), recipes)


def parse_flavors(text: str, own: str = "") -> Flavors:
    """Parse flavors.toml and the operator's file `own`.

    Raises ValueError with the error and its place.
    """
    data = _merge(text, own, "flavors", {"default"})
    flavors = {name: _flavor(name, raw) for name, raw in data["flavors"].items()}
    return Flavors(_default(data, flavors, "flavor"), flavors)


def load_recipes(own: Path | None = None) -> Recipes:
    """Return the shipped image catalog, merged with the file `own` if it exists.

    Raises Unavailable with the file and its error.
    """
    return _load(IMAGES_FILE, own, parse_recipes)


def load_flavors(own: Path | None = None) -> Flavors:
    """Return the shipped flavor catalog, merged with the file `own` if it exists.

    Raises Unavailable with the file and its error.
    """
    return _load(FLAVORS_FILE, own, parse_flavors)


def _load(name: str, own: Path | None, parse: Callable[[str, str], _Parsed]) -> _Parsed:
    shipped = resources.files("boxd.images").joinpath(name).read_text(encoding="utf-8")
    if own is None or not own.exists():
        return parse(shipped, "")
    try:
        return parse(shipped, own.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unavailable(f"the catalog file {own} cannot be used: {error}") from None


def _merge(text: str, own: str, table: str, keys: set[str]) -> dict[str, Any]:
    data: dict[str, Any] = tomllib.loads(text)
    changes = tomllib.loads(own)
    unknown = sorted(changes.keys() - keys - {table})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; known: {table}, {_listed(keys)}")
    entries = changes.pop(table, {})
    if not isinstance(entries, dict):
        raise ValueError(f"{table!r} must be a table that contains a table for each of them")
    return data | changes | {table: data[table] | entries}


def _image(name: str, raw: object) -> dict[str, Any]:
    context = f"image {name!r}"
    entry = _entry(name, raw, context, {"description", "packages", "programs"}, {"base"})
    _text(entry, context)
    _matching(_BASE, entry.get("base", "none"), f"{context}: base")
    for key, pattern in (("packages", _PACKAGE), ("programs", _PROGRAM)):
        if not isinstance(entry[key], list):
            raise ValueError(f"{context}: {key!r} must be a list of names")
        for word in entry[key]:
            _matching(pattern, word, f"{context}: {key}")
    return entry


def _flavor(name: str, raw: object) -> Flavor:
    context = f"flavor {name!r}"
    numbers = {"cpus": 0.01, "mem_mb": MIN_MEM_MB, "disk_mb": 0, "pids": MIN_PIDS}
    entry = _entry(
        name, raw, context, {"description", *numbers}, {"runtime", "containers", "tiers"}
    )
    _text(entry, context)
    for key, minimum in numbers.items():
        types = (int, float) if key == "cpus" else (int,)
        value = entry[key]
        if type(value) not in types or not minimum <= value < 2**31:
            kind = "a number" if key == "cpus" else "an integer"
            raise ValueError(
                f"{context}: {key!r} must be {kind} of at least {minimum}, not {value!r}"
            )
    runtime, containers = entry.get("runtime", ""), entry.get("containers", False)
    if runtime != "":
        _matching(_RUNTIME, runtime, f"{context}: runtime")
    if not isinstance(containers, bool):
        raise ValueError(f"{context}: 'containers' must be true or false")
    return Flavor(
        name,
        entry["description"],
        float(entry["cpus"]),
        entry["mem_mb"],
        entry["disk_mb"],
        entry["pids"],
        runtime=runtime,
        containers=containers,
        tiers=_tiers(entry.get("tiers", []), context),
    )


def _tiers(raw: object, context: str) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(tier, str) for tier in raw):
        raise ValueError(f"{context}: 'tiers' must be a list of names of tiers")
    return tuple(raw)


def _entry(
    name: str, raw: object, context: str, required: set[str], optional: set[str]
) -> dict[str, Any]:
    try:
        if parse_name(name) != name:
            raise ValueError(f"{context}: the name must be in lower case")
    except BadName as error:
        raise ValueError(str(error)) from None
    if not isinstance(raw, dict):
        raise ValueError(f"{context} must be a table")
    for key in sorted(required - raw.keys()):
        raise ValueError(f"{context}: {key!r} is missing")
    for key in sorted(raw.keys() - required - optional):
        raise ValueError(f"{context}: unknown key {key!r}; known: {_listed(required | optional)}")
    return raw


def _text(entry: dict[str, Any], context: str) -> None:
    text = entry["description"]
    if not isinstance(text, str) or not text.isprintable() or len(text) > MAX_DESCRIPTION:
        limit = f"at most {MAX_DESCRIPTION} characters"
        raise ValueError(f"{context}: 'description' must be one line of {limit}")


def _matching(pattern: re.Pattern[str], word: object, label: str) -> None:
    if not isinstance(word, str) or pattern.fullmatch(word) is None:
        raise ValueError(f"{label}: {shown(str(word))} is not a valid name")


def _lineage(name: str, entries: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    lineage: list[dict[str, Any]] = []
    current: str | None = name
    while current is not None:
        if current not in entries:
            raise ValueError(f"image {name!r} has the base {current!r}, which does not exist")
        if len(lineage) > len(entries):
            raise ValueError(f"the bases of image {name!r} form a circle")
        lineage.append(entries[current])
        current = entries[current].get("base")
    return lineage


def _default(data: dict[str, Any], entries: dict[str, Any], label: str) -> str:
    default = data["default"]
    if not isinstance(default, str) or default not in entries:
        raise ValueError(f"the default {label} {default!r} is not in the catalog")
    return default


def _listed(words: set[str]) -> str:
    return ", ".join(sorted(words))
