"""What boxes can be made of: the catalogs of images and flavors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.operations.core import Core

if TYPE_CHECKING:
    from boxd.model.catalog import Flavor, Image


class CatalogOperations(Core):
    """See the module."""

    def images(self) -> list[Image]:
        """The image catalog."""
        return self._catalog.images()

    def flavors(self) -> list[Flavor]:
        """The flavor catalog."""
        return self._catalog.flavors()
