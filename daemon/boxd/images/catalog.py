"""What boxes can start from, and where its root lies on this host.

An image is built from a recipe of the catalog, or imported. `images/<name>/rootfs` is a symbolic
link to `versions/<id>`: a build or an import adds a version and changes the link, because the roots
of existing boxes stand on the version that they were made from.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, Conflict, Unavailable, UnknownImage
from boxd.images import build, importer, recipes
from boxd.images.versions import Versions
from boxd.model.catalog import Flavor, Image
from boxd.names.words import is_name, parse_name, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from boxd.images.progress import Progress
    from boxd.images.versions import Users

PACKAGES_DIR = ".packages"

_log = logging.getLogger(__name__)


class Catalog:
    """Images and flavors of one installation. Unavailable when a catalog file is not right."""

    def __init__(
        self, images_dir: Path, *, own: Path | None = None, proxy: str | None = None
    ) -> None:
        """`own` is the directory of the operator's catalog files, `proxy` the host's HTTP proxy
        for building."""
        self._directory = images_dir.resolve()
        self._proxy = proxy
        self._recipes = recipes.load_recipes(own and own / recipes.IMAGES_FILE)
        self._flavors = recipes.load_flavors(own and own / recipes.FLAVORS_FILE)
        clash = sorted(self._recipes.by_name.keys() & self._flavors.by_name.keys())
        if clash:
            raise Unavailable(
                f"{clash[0]!r} is an image and a flavor in the catalog files of {own}: both stand "
                "behind a colon in a box spec, so their names must differ"
            )

    @property
    def default_image(self) -> str:
        """The image that `make up` builds."""
        return self._recipes.default

    @property
    def default_flavor(self) -> Flavor:
        """The caps of a box whose spec names no flavor."""
        return self._flavors.by_name[self._flavors.default]

    def images(self) -> list[Image]:
        """In the catalog's order, built or not; then the imported ones, by name."""
        listed = []
        for recipe in self._recipes.by_name.values():
            versions = self._versions(recipe.name)
            description = versions.imported or recipe.description
            listed.append(Image(recipe.name, description, versions.present))
        return [*listed, *self._imported()]

    def flavors(self) -> list[Flavor]:
        """In the catalog's order."""
        return list(self._flavors.by_name.values())

    def is_built(self, name: str) -> bool:
        """Whether boxes can start from it now. Raises UnknownImage."""
        if not self._is_imported(name):
            self._known(name)
        return self._versions(name).present

    def rootfs(self, name: str) -> Path:
        """The unpacked root of the newest version.

        Raises UnknownImage, also for a known image with an unknown flavor behind it, and
        Unavailable naming what is built; the log names the command that builds it.
        """
        image, colon, flavor = name.rpartition(":")
        if colon and image in {one.name for one in self.images()}:
            known = ", ".join(self._flavors.by_name)
            raise UnknownImage(f"no flavor {shown(flavor)}; known: {known}")
        if not self.is_built(name):
            state = self._directory.parent
            _log.info("to build it: boxd images build %s --state-dir %s", name, state)
            built = ", ".join(image.name for image in self.images() if image.built) or "none"
            raise Unavailable(
                f"image {name!r} is not built on this host; built here: {built}; ask the operator"
            )
        return self._versions(name).current

    async def build(self, name: str, progress: Callable[[str], None]) -> Path:
        """Builds a new version and makes it the current one; returns its root.

        `progress` is told `image NAME: PERCENT % PHASE` whenever that changes.

        Raises UnknownImage, Conflict while another process changes the image, and Unavailable with
        the reason when it fails; the current version stays then.
        """
        recipe = self._known(name)
        versions = self._versions(name)
        with versions.alone():
            target = versions.fresh(recipe.digest)
            packages = self._directory / PACKAGES_DIR
            await build.build_root(
                recipe, target, packages, _teller(name, progress), proxy=self._proxy
            )
            versions.publish(target, None)
        return target

    async def import_image(
        self, name: str, source: Path, progress: Callable[[str], None]
    ) -> importer.Imported:
        """Makes the root in an archive or a directory a new version and the current one.

        Raises BadName, BadRequest saying what is wrong with the source, Conflict while another
        process changes the image, and Unavailable; the current version stays then.
        """
        name = parse_name(name, "image name")
        if name in self._flavors.by_name:
            raise BadRequest(f"{name!r} is a flavor: choose another name for the image")
        importer.check_source(source)
        versions = self._versions(name)
        with versions.alone():
            imported = await importer.import_root(
                source, versions.fresh("imported"), _teller(name, progress)
            )
            versions.publish(imported.root, f"Imported from {source.name}")
        return imported

    def remove(self, name: str, users: Users) -> None:
        """Removes what is built or imported of an image; a recipe stays in the catalog.

        Raises UnknownImage, Conflict naming the boxes that stand on it, or when there is nothing
        to remove or another process changes it.
        """
        if not self._is_imported(name):
            self._known(name)
        if not self._versions(name).any:
            raise Conflict(f"image {name!r} is not built on this host; nothing to remove")
        with self._versions(name).alone():
            self._versions(name).remove(users)

    def prune(self, users: Users) -> list[Path]:
        """Removes versions that are neither current nor in `users`; returns what went.

        Images that another process changes are left alone.
        """
        removed: list[Path] = []
        for versions in self._on_disk():
            try:
                with versions.alone():
                    removed += versions.prune(users)
            except Conflict:
                continue
        return removed

    def _known(self, name: str) -> recipes.Recipe:
        if name not in self._recipes.by_name:
            known = ", ".join(image.name for image in self.images())
            raise UnknownImage(f"there is no image {name!r}; the catalog has {known}")
        return self._recipes.by_name[name]

    def _imported(self) -> list[Image]:
        found = []
        for versions in self._on_disk():
            description = versions.imported
            if versions.name not in self._recipes.by_name and description is not None:
                found.append(Image(versions.name, description, versions.present))
        return found

    def _is_imported(self, name: str) -> bool:
        return is_name(name) and self._versions(name).imported is not None

    def _on_disk(self) -> list[Versions]:
        found = sorted(self._directory.glob("*/versions"))
        return [Versions(path.parent) for path in found if is_name(path.parent.name)]

    def _versions(self, name: str) -> Versions:
        return Versions(self._directory / name)


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
