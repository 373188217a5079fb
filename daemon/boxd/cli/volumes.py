"""`boxd volumes`: ls, credentials, restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from boxd.cli.printing import print_table
from boxd.errors import BadRequest

if TYPE_CHECKING:
    import argparse

    from boxd.cli.flags import Commands, Flags
    from boxd.config import Config


def add(commands: Commands, flags: Flags) -> None:
    """The command and its verbs."""
    volumes = commands.add_parser("volumes", help="drives of a service that runs")
    verbs = volumes.add_subparsers(required=True, metavar="VERB")
    parents = [flags.common, flags.servers]
    verbs.add_parser("ls", parents=parents, help="all").set_defaults(run=_ls)
    text = "write what `wrkfs --credentials` takes into a new file (0600)"
    credentials = verbs.add_parser("credentials", parents=parents, help=text)
    credentials.add_argument("volume", metavar="VOLUME", help="as `volumes ls` shows it")
    credentials.add_argument("file", type=Path, metavar="FILE")
    credentials.set_defaults(run=_credentials)
    restore = verbs.add_parser("restore", parents=parents, help="give a removed drive back")
    restore.add_argument("volume", metavar="VOLUME", help="as `volumes ls` shows it")
    restore.add_argument("--workspace", metavar="NAME", help="which it belongs to from now on")
    restore.set_defaults(run=_restore)


def _ls(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from boxd.service import list_volumes

    del arguments
    rows = asyncio.run(list_volumes(config))
    print_table([("VOLUME", "OWNER", "WORKSPACE", "CREATED", "TRASHED UNTIL"), *rows])
    return 0


def _restore(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from boxd.service import restore_volume

    name = asyncio.run(restore_volume(config, arguments.volume, arguments.workspace))
    print(f"it is the drive of workspace {name}")
    return 0


def _credentials(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from boxd.embedded.files import write_private
    from boxd.service import volume_credentials

    file: Path = arguments.file
    if file.exists():
        raise BadRequest(f"{file} exists; name a file that does not")
    text = asyncio.run(volume_credentials(config, arguments.volume))
    try:
        write_private(file, text.encode())
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror}") from None
    print(f"wrote {file}: it opens the whole drive, keep it as secret as the files in it")
    return 0
