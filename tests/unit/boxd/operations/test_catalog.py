"""The catalogs as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boxd.operations import Operations


async def test_catalogs(ops: Operations) -> None:
    assert [image.name for image in ops.catalog.images()] == ["debian", "unbuilt"]
    assert [flavor.name for flavor in ops.catalog.flavors()] == ["small", "large"]
