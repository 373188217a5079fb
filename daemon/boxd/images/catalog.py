"""The images and flavors for boxes, and the roots of images on this host.

An image is built from a recipe of the catalog, or imported. `images/<name>/rootfs` is a symbolic
link to `versions/<id>`. A build or an import adds a version and changes the link. Older versions
stay while they are in use, because the root of an existing box depends on the version that the box
was created from.
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
    """Images and flavors of one installation. Raises Unavailable for a wrong catalog file."""

    def __init__(
        self, images_dir: Path, *, own: Path | None = None, proxy: str | None = None
    ) -> None:
        """`own` is the directory of the operator's catalog files.

        `proxy` is the HTTP proxy for builds.
        """
        self._directory = images_dir.resolve()
        self._proxy = proxy
        self._recipes = recipes.load_recipes(own and own / recipes.IMAGES_FILE)
        self._flavors = recipes.load_flavors(own and own / recipes.FLAVORS_FILE)
        clash = sorted(self._recipes.by_name.keys() & self._flavors.by_name.keys())
        if clash:
            raise Unavailable(
                f"{clash[0]!r} is an image and a flavor in the catalog files of {own}: both follow "
                "a colon in a box spec, so their names must differ; rename one"
            )

    @property
    def default_image(self) -> str:
        """The image that `make up` builds."""
        return self._recipes.default

    @property
    def default_flavor(self) -> Flavor:
        """The limits of a box whose spec names no flavor."""
        return self._flavors.by_name[self._flavors.default]

    def images(self) -> list[Image]:
        """Return all images in the order of the catalog, then the imported ones by name."""
        listed = []
        for recipe in self._recipes.by_name.values():
            versions = self._versions(recipe.name)
            description = versions.imported or recipe.description
            listed.append(Image(recipe.name, description, versions.present))
        return [*listed, *self._imported()]

    def flavors(self) -> list[Flavor]:
        """Return all flavors in the order of the catalog."""
        return list(self._flavors.by_name.values())

    def is_built(self, name: str) -> bool:
        """Return whether boxes can start from the image now. Raises UnknownImage."""
        if not self._is_imported(name):
            self._recipe(name)
        return self._versions(name).present

    def rootfs(self, name: str) -> Path:
        """Return the unpacked root of the newest version.

        Raises UnknownImage, even for `IMAGE:FLAVOR` with an unknown flavor. Raises Unavailable with
        the available images if this one is not built; the log names the command to build it.
        """
        image_name, colon, flavor = name.rpartition(":")
        if colon and image_name in {image.name for image in self.images()}:
            flavors = ", ".join(self._flavors.by_name)
            raise UnknownImage(f"no flavor {shown(flavor)}; known: {flavors}")
        if not self.is_built(name):
            state = self._directory.parent
            _log.info("to build it: boxd images build %s --state-dir %s", name, state)
            built = ", ".join(image.name for image in self.images() if image.built) or "none"
            raise Unavailable(
                f"image {name!r} is not built on this host; built here: {built}; ask the operator"
            )
        return self._versions(name).current

    async def build(self, name: str, progress: Callable[[str], None]) -> Path:
        """Build a new version and make it the current one; return its root.

        `progress` receives `image NAME: PERCENT % PHASE` after each change. Raises UnknownImage,
        Conflict while another process changes the image, and Unavailable with the reason of a
        failure; then the current version stays.
        """
        recipe = self._recipe(name)
        versions = self._versions(name)
        with versions.locked():
            target = versions.new_path(recipe.digest)
            packages = self._directory / PACKAGES_DIR
            await build.build_root(
                recipe, target, packages, _named_progress(name, progress), proxy=self._proxy
            )
            versions.publish(target, None)
        return target

    async def import_image(
        self, name: str, source: Path, progress: Callable[[str], None]
    ) -> importer.ImportResult:
        """Import an archive or a directory as a new version, and make it the current one.

        Raises BadName, BadRequest with the error in the source, Conflict while another process
        changes the image, or Unavailable; then the current version stays.
        """
        name = parse_name(name, "image name")
        if name in self._flavors.by_name:
            raise BadRequest(f"{name!r} is a flavor: choose another name for the image")
        importer.check_source(source)
        versions = self._versions(name)
        with versions.locked():
            imported = await importer.import_root(
                source, versions.new_path("imported"), _named_progress(name, progress)
            )
            versions.publish(imported.root, f"Imported from {source.name}")
        return imported

    def remove(self, name: str, users: Users) -> None:
        """Remove all versions of an image. Its recipe stays in the catalog.

        Raises UnknownImage. Raises Conflict if boxes use the image, if there is nothing to remove,
        or while another process changes the image.
        """
        if not self._is_imported(name):
            self._recipe(name)
        if not self._versions(name).any:
            raise Conflict(f"image {name!r} is not built on this host; nothing to remove")
        with self._versions(name).locked():
            self._versions(name).remove(users)

    def prune(self, users: Users) -> list[Path]:
        """Remove versions that are neither current nor in `users`; return their paths.

        Skips images that another process is changing.
        """
        removed: list[Path] = []
        for versions in self._on_disk():
            try:
                with versions.locked():
                    removed += versions.prune(users)
            except Conflict:
                continue
        return removed

    def _recipe(self, name: str) -> recipes.Recipe:
        if name not in self._recipes.by_name:
            names = ", ".join(image.name for image in self.images())
            raise UnknownImage(f"there is no image {name!r}; the catalog has {names}")
        return self._recipes.by_name[name]

    def _imported(self) -> list[Image]:
        images = []
        for versions in self._on_disk():
            description = versions.imported
            if versions.name not in self._recipes.by_name and description is not None:
                images.append(Image(versions.name, description, versions.present))
        return images

    def _is_imported(self, name: str) -> bool:
        return is_name(name) and self._versions(name).imported is not None

    def _on_disk(self) -> list[Versions]:
        directories = sorted(self._directory.glob("*/versions"))
        return [Versions(path.parent) for path in directories if is_name(path.parent.name)]

    def _versions(self, name: str) -> Versions:
        return Versions(self._directory / name)


def _named_progress(name: str, progress: Callable[[str], None]) -> Callable[[Progress], None]:
    """Return a function that passes on the progress of an image when its text has changed."""
    last_text = ""

    def report(state: Progress) -> None:
        nonlocal last_text
        text = f"image {name}: {state}"
        if text != last_text:
            last_text = text
            progress(text)

    return report
