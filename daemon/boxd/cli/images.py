"""The command `boxd images`: build, import, rm, ls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from boxd import log
from boxd.cli.parsers import COMMON, parent
from boxd.cli.printing import print_table, say, showing

if TYPE_CHECKING:
    import argparse

    from boxd.cli.parsers import Commands
    from boxd.config import Config


def add(commands: Commands) -> None:
    """Add the command and its verbs."""
    parents = [parent(COMMON)]
    images = commands.add_parser("images", help="build, import, list or remove images")
    verbs = images.add_subparsers(required=True, metavar="VERB")
    build = verbs.add_parser("build", parents=parents, help="build images from their recipes")
    build.add_argument("names", nargs="+", metavar="NAME")
    build.set_defaults(run=_build)
    text = "create an image from a directory or a tar archive (also docker save, OCI layout)"
    importing = verbs.add_parser("import", parents=parents, help=text)
    importing.add_argument("name", metavar="NAME")
    importing.add_argument("source", type=Path, metavar="FILE|DIR")
    importing.set_defaults(run=_import)
    removing = verbs.add_parser("rm", parents=parents, help="remove images that no box uses")
    removing.add_argument("names", nargs="+", metavar="NAME")
    removing.set_defaults(run=_rm)
    verbs.add_parser("ls", parents=parents, help="list the images").set_defaults(run=_ls)


def _build(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from rich.console import Console

    from boxd.maintenance import build_image

    console = Console(stderr=True)
    with showing(console) as progress, asyncio.Runner() as runner:
        for name in arguments.names:
            runner.run(build_image(config, name, progress))
    return 0


def _import(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from rich.console import Console

    from boxd.maintenance import import_image

    console = Console(stderr=True)
    with showing(console) as progress, asyncio.Runner() as runner:
        imported = runner.run(import_image(config, arguments.name, arguments.source, progress))
    for note in imported.notes:
        say(console, log.escape(note))
    size = f"{imported.bytes / 1e6:.0f} MB in {imported.entries} files"
    say(console, f"imported image {arguments.name}: {size}")
    return 0


def _rm(config: Config, arguments: argparse.Namespace) -> int:
    from boxd.maintenance import remove_image

    for name in arguments.names:
        remove_image(config, name)
        print(f"removed {name}")
    return 0


def _ls(config: Config, arguments: argparse.Namespace) -> int:
    from boxd.maintenance import known_images

    del arguments
    rows = (
        (image.name, "yes" if image.built else "no", image.description)
        for image in known_images(config)
    )
    print_table([("NAME", "BUILT", "DESCRIPTION"), *rows])
    return 0
