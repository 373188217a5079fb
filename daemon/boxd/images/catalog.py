"""What boxes can start from, and where its root lies on this host.

`images/<name>/rootfs` is a symbolic link to `versions/<id>`: a rebuild adds a version and changes
the link, because the roots of existing boxes stand on the version that they were made from.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from boxd.errors import Conflict, Unavailable, UnknownImage
from boxd.images import build, recipes
from boxd.model.catalog import Flavor, Image
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from boxd.images.progress import Progress

PACKAGES_DIR = ".packages"

_log = logging.getLogger(__name__)


class Catalog:
    """Images and flavors of one installation."""

    def __init__(self, images_dir: Path, *, proxy: str | None = None) -> None:
        """`proxy` is the host's HTTP proxy for building."""
        self._directory = images_dir
        self._proxy = proxy
        self._recipes = recipes.load_recipes()
        self._flavors = recipes.load_flavors()

    @property
    def default_image(self) -> str:
        """The image that `make up` builds."""
        return self._recipes.default

    @property
    def default_flavor(self) -> Flavor:
        """The caps of a box whose spec names no flavor."""
        return self._flavors.by_name[self._flavors.default]

    def images(self) -> list[Image]:
        """In the catalog's order, built or not."""
        recipes = self._recipes.by_name.values()
        return [Image(r.name, r.description, self._link(r.name).is_dir()) for r in recipes]

    def flavors(self) -> list[Flavor]:
        """In the catalog's order."""
        return list(self._flavors.by_name.values())

    def is_built(self, name: str) -> bool:
        """Whether boxes can start from it now. Raises UnknownImage."""
        self._recipes.get(name)
        return self._link(name).is_dir()

    def rootfs(self, name: str) -> Path:
        """The unpacked root of the newest version.

        Raises UnknownImage, also for a known image with an unknown flavor behind it, and
        Unavailable naming what is built; the log names the command that builds it.
        """
        image, colon, flavor = name.rpartition(":")
        if colon and image in self._recipes.by_name:
            known = ", ".join(self._flavors.by_name)
            raise UnknownImage(f"no flavor {shown(flavor)}; known: {known}")
        if not self.is_built(name):
            state = self._directory.parent
            _log.info("to build it: boxd images build %s --state-dir %s", name, state)
            built = ", ".join(image.name for image in self.images() if image.built) or "none"
            raise Unavailable(
                f"image {name!r} is not built on this host; built here: {built}; ask the operator"
            )
        return self._link(name).resolve()

    async def build(self, name: str, progress: Callable[[str], None]) -> Path:
        """Builds a new version and makes it the current one; returns its root.

        `progress` is told `image NAME: PERCENT % PHASE` whenever that changes.

        Raises UnknownImage, Conflict while another build of it runs, and Unavailable with the
        reason when it fails; the current version stays then.
        """
        recipe = self._recipes.get(name)
        image = self._directory / name
        versions = image / "versions"
        await asyncio.to_thread(versions.mkdir, parents=True, exist_ok=True)
        with _only_builder(image / "lock", name):
            target = versions / f"{recipe.digest}-{secrets.token_hex(4)}"
            packages = self._directory / PACKAGES_DIR
            await build.build_root(
                recipe, target, packages, _teller(name, progress), proxy=self._proxy
            )
            fresh = image / ".rootfs.new"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(target.relative_to(image))
            fresh.replace(self._link(name))
        return target

    def prune(self, used: set[Path]) -> list[Path]:
        """Removes versions that are neither current nor in `used`; returns what went."""
        removed = []
        for version in sorted(self._directory.glob("*/versions/[!.]*")):
            current = version.parent.parent / "rootfs"
            if version != current.resolve() and version not in used:
                shutil.rmtree(version)
                removed.append(version)
        return removed

    def _link(self, name: str) -> Path:
        return self._directory / name / "rootfs"


def _teller(name: str, progress: Callable[[str], None]) -> Callable[[Progress], None]:
    """Passes on what is new to people: a package more is not always a percent more."""
    told = ""

    def tell(state: Progress) -> None:
        nonlocal told
        text = f"image {name}: {state}"
        if text != told:
            told = text
            progress(text)

    return tell


@contextmanager
def _only_builder(path: Path, name: str) -> Iterator[None]:
    """Holds the image's build lock. The kernel lets go of it when the process dies."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"image {name!r} is being built already") from None
        yield
    finally:
        os.close(lock)
