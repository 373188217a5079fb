"""Images in the engine: roots of the catalog, imported once per version, and any OCI image."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.backends.box_locks import BoxLocks
from boxd.backends.docker.config import IMAGE
from boxd.errors import UnknownImage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from boxd.backends.docker.engine import Engine

REFERENCE = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[A-Za-z0-9][A-Za-z0-9._-]*)*)"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)
"""Image references that are accepted in a request's path. The engine is stricter."""
MAX_REFERENCE = 512
PLATFORM = ("linux", "amd64")
"""The platform of the guest runtime."""
_NO_TAG = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image in the engine: its id, and its environment (`NAME=value`)."""

    id: str
    environment: tuple[str, ...]


class EngineImages:
    """Finds, imports and pulls images.

    Critical section: a lock per image. Concurrent boxes of a new image pull it once, and a slow
    registry blocks no other image.
    """

    def __init__(self, engine: Engine, installation: str) -> None:
        self._engine = engine
        self._installation = installation
        self._locks = BoxLocks()

    async def of_root(self, name: str, root: Path) -> EngineImage:
        """Return the engine's image of a catalog image's root. Import a new version of the root.

        After an import, the method removes older versions that no container uses.
        """
        version = await asyncio.to_thread(root.resolve)
        repository, tag = self._named(name, version)
        image = await self._engine.image(f"{repository}:{tag}")
        if image is None:
            async with self._locks.alone(f"{repository}:{tag}"):
                image = await self._engine.image(f"{repository}:{tag}")
                if image is None:
                    await self._engine.import_root(version, repository, tag, self._label)
                    image = await self._engine.image(f"{repository}:{tag}")
                    await self._prune(repository, tag)
        return _usable(f"{repository}:{tag}", image)

    async def of_reference(self, reference: str) -> EngineImage:
        """Return an OCI image, pulled from its registry if it is not on this host.

        Raises UnknownImage for an invalid name, a missing image, or one for other machines, and
        Unavailable with the registry's error.
        """
        if len(reference) > MAX_REFERENCE or not REFERENCE.fullmatch(reference):
            raise UnknownImage(f"{reference[:MAX_REFERENCE]!r} is not a valid image name")
        if reference.startswith(self._prefix):
            raise UnknownImage(f"{reference!r} is an image of this service: use its catalog name")
        image = await self._engine.image(reference)
        if image is None:
            async with self._locks.alone(reference):
                image = await self._engine.image(reference)
                if image is None:
                    await self._engine.pull(reference)
                    image = await self._engine.image(reference)
        return _usable(reference, image)

    async def keep(self, roots: Mapping[str, Path]) -> None:
        """Remove imported images of all other roots, except those that a container uses."""
        current = set()
        for name, root in roots.items():
            current.add(":".join(self._named(name, await asyncio.to_thread(root.resolve))))
        for reference in await self._engine.images(self._label):
            if reference not in current:
                await self._engine.remove_image(reference)

    def _named(self, name: str, version: Path) -> tuple[str, str]:
        """Return repository and tag of an image's root."""
        repository = f"{self._prefix}{_NO_TAG.sub('-', name).lower().strip('-._') or 'image'}"
        return repository, _NO_TAG.sub("-", version.name).lstrip("-.")[:128] or "root"

    async def _prune(self, repository: str, tag: str) -> None:
        for name in await self._engine.images(self._label):
            if name.rpartition(":")[0] == repository and name != f"{repository}:{tag}":
                await self._engine.remove_image(name)

    @property
    def _prefix(self) -> str:
        """Return the prefix of the names of imported images.

        Two installations may share an engine.
        """
        return f"boxd-{self._installation}/"

    @property
    def _label(self) -> str:
        return f"{IMAGE}={self._installation}"


def _usable(reference: str, image: dict[str, Any] | None) -> EngineImage:
    if image is None:
        raise UnknownImage(f"image {reference!r} was removed in the meantime; try again")
    platform = (str(image.get("Os")), str(image.get("Architecture")))
    if platform != PLATFORM:
        needed, actual = "/".join(PLATFORM), "/".join(platform)
        raise UnknownImage(f"image {reference!r} is for {actual}; boxes here are {needed}")
    environment = (image.get("Config") or {}).get("Env") or ()
    return EngineImage(str(image["Id"]), tuple(environment))
