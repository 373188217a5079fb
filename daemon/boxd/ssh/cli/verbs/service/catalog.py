"""`images` and `flavors`: the images and hardware sizes of boxes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd.model.catalog import Flavor, Image


def images_table(images: Sequence[Image]) -> str:
    """Return the image catalog as a table."""
    rows = [(image.name, "yes" if image.built else "no", image.description) for image in images]
    return table(("NAME", "BUILT", "DESCRIPTION"), rows)


async def _images(call: Call) -> Reply:
    images = call.operations.catalog.images()
    return Reply([asdict(image) for image in images], images_table(images))


def _description(flavor: Flavor) -> str:
    """Return the operator's description, and the properties that are not sizes."""
    properties = [f"runtime {flavor.runtime}"] if flavor.runtime else []
    properties += ["allows containers"] if flavor.containers else []
    return f"{flavor.description} ({', '.join(properties)})" if properties else flavor.description


async def _flavors(call: Call) -> Reply:
    flavors = call.operations.catalog.flavors()
    rows = [
        (
            flavor.name,
            flavor.cpus,
            flavor.mem_mb,
            flavor.disk_mb or None,
            flavor.pids,
            _description(flavor),
        )
        for flavor in flavors
    ]
    columns = ("NAME", "CPUS", "MEM MiB", "DISK MiB", "PIDS", "DESCRIPTION")
    return Reply([flavor.to_json() for flavor in flavors], table(columns, rows))


COMMANDS = (
    Command(("images",), "list the images that boxes can start from", "images", _images),
    Command(("flavors",), "list hardware sizes", "flavors", _flavors),
)
