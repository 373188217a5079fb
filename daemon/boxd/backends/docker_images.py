"""Images in the engine: roots of our catalog, imported once per version, and any OCI image."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.backends.boxlocks import BoxLocks
from boxd.backends.docker_config import IMAGE
from boxd.errors import UnknownImage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from boxd.backends.docker_engine import Engine

REFERENCE = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[A-Za-z0-9][A-Za-z0-9._-]*)*)"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)
"""What may stand in a request's path. The engine is stricter and says why."""
MAX_REFERENCE = 512
PLATFORM = ("linux", "amd64")
"""The guest runtime's."""
_NO_TAG = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image that the engine has: its id, and the environment that it asks for."""

    id: str
    environment: tuple[str, ...]


class EngineImages:
    """Finds, imports and fetches images.

    Critical section: a lock per image, so that boxes which are made at once from a new image fetch
    it once, and a slow registry keeps nobody else waiting.
    """

    def __init__(self, engine: Engine, installation: str) -> None:
        self._engine = engine
        self._installation = installation
        self._locks = BoxLocks()

    async def of_root(self, name: str, root: Path) -> EngineImage:
        """The image of a catalog image's unpacked root; a version is imported when first used.

        Versions that were imported before and that no container stands on are removed then.
        """
        version = await asyncio.to_thread(root.resolve)
        repository, tag = self._named(name, version)
        found = await self._engine.image(f"{repository}:{tag}")
        if found is None:
            async with self._locks.alone(f"{repository}:{tag}"):
                found = await self._engine.image(f"{repository}:{tag}")
                if found is None:
                    await self._engine.import_root(version, repository, tag, self._label)
                    found = await self._engine.image(f"{repository}:{tag}")
                    await self._prune(repository, tag)
        return _usable(f"{repository}:{tag}", found)

    async def of_reference(self, reference: str) -> EngineImage:
        """An OCI image as it is on this host, else fetched from its registry.

        Raises UnknownImage for no name, no such image, or one for other machines, and Unavailable
        with what the registry answered.
        """
        if len(reference) > MAX_REFERENCE or not REFERENCE.fullmatch(reference):
            raise UnknownImage(f"{reference[:MAX_REFERENCE]!r} names no image")
        if reference.startswith(self._prefix):
            raise UnknownImage(f"{reference!r} is an image of this service: use its catalog name")
        found = await self._engine.image(reference)
        if found is None:
            async with self._locks.alone(reference):
                found = await self._engine.image(reference)
                if found is None:
                    await self._engine.pull(reference)
                    found = await self._engine.image(reference)
        return _usable(reference, found)

    async def keep(self, roots: Mapping[str, Path]) -> None:
        """Removes what was imported of other roots, unless a container stands on it."""
        wanted = set()
        for name, root in roots.items():
            wanted.add(":".join(self._named(name, await asyncio.to_thread(root.resolve))))
        for reference in await self._engine.images(self._label):
            if reference not in wanted:
                await self._engine.remove_image(reference)

    def _named(self, name: str, version: Path) -> tuple[str, str]:
        """Repository and tag of an image's root."""
        repository = f"{self._prefix}{_NO_TAG.sub('-', name).lower().strip('-._') or 'image'}"
        return repository, _NO_TAG.sub("-", version.name).lstrip("-.")[:128] or "root"

    async def _prune(self, repository: str, tag: str) -> None:
        for name in await self._engine.images(self._label):
            if name.rpartition(":")[0] == repository and name != f"{repository}:{tag}":
                await self._engine.remove_image(name)

    @property
    def _prefix(self) -> str:
        """What the names of imported images start with: two installations may share an engine."""
        return f"boxd-{self._installation}/"

    @property
    def _label(self) -> str:
        return f"{IMAGE}={self._installation}"


def _usable(reference: str, found: dict[str, Any] | None) -> EngineImage:
    if found is None:
        raise UnknownImage(f"image {reference!r} is gone again; try once more")
    platform = (str(found.get("Os")), str(found.get("Architecture")))
    if platform != PLATFORM:
        wanted, has = "/".join(PLATFORM), "/".join(platform)
        raise UnknownImage(f"image {reference!r} is for {has}; boxes here are {wanted}")
    environment = (found.get("Config") or {}).get("Env") or ()
    return EngineImage(str(found["Id"]), tuple(environment))
