"""The command `boxd volumes`: ls, credentials, restore, journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from boxd.cli.parsers import SERVERS, parent
from boxd.cli.printing import print_table
from boxd.errors import BadRequest

if TYPE_CHECKING:
    import argparse

    from boxd.cli.parsers import Commands
    from boxd.config import Config


def add(commands: Commands) -> None:
    """Add the command and its verbs."""
    volumes = commands.add_parser(
        "volumes", help="list and restore the drives of a running service"
    )
    verbs = volumes.add_subparsers(required=True, metavar="VERB")
    parents = [parent(SERVERS)]
    verbs.add_parser("ls", parents=parents, help="list all volumes").set_defaults(run=_ls)
    text = "write a new credentials file (mode 0600) for `wrkfs --credentials`"
    credentials = verbs.add_parser("credentials", parents=parents, help=text)
    credentials.add_argument("volume", metavar="VOLUME", help="the name in `volumes ls`")
    credentials.add_argument("file", type=Path, metavar="FILE")
    credentials.set_defaults(run=_credentials)
    restore = verbs.add_parser("restore", parents=parents, help="restore a removed drive")
    restore.add_argument("volume", metavar="VOLUME", help="the name in `volumes ls`")
    restore.add_argument(
        "--workspace", metavar="NAME", help="attach the drive to this workspace (default: its own)"
    )
    restore.set_defaults(run=_restore)
    text = "list the changes that mounts have answered and not sent, and those that were lost"
    journal = verbs.add_parser("journal", parents=parents, help=text)
    journal.add_argument(
        "--show", metavar="JOURNAL", help="print the changes of one journal (default: list all)"
    )
    journal.set_defaults(run=_journal)


def _ls(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from boxd.maintenance import list_volumes

    del arguments
    rows = asyncio.run(list_volumes(config))
    print_table([("VOLUME", "OWNER", "WORKSPACE", "CREATED", "TRASHED UNTIL"), *rows])
    return 0


def _journal(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from boxd.maintenance import show_journal, volume_journals

    if arguments.show is not None:
        for line in show_journal(config, arguments.show):
            print(line)
        return 0
    rows = asyncio.run(volume_journals(config))
    heads = ("JOURNAL", "WORKSPACE", "SESSION", "STATE", "LAST CHANGE", "CHANGES", "NAMES")
    print_table([heads, *rows])
    return 0


def _restore(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from boxd.maintenance import restore_volume

    name = asyncio.run(restore_volume(config, arguments.volume, arguments.workspace))
    print(f"restored as the drive of workspace {name}")
    return 0


def _credentials(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from boxd.embedded.files import write_private
    from boxd.maintenance import volume_credentials

    file: Path = arguments.file
    if file.exists():
        raise BadRequest(f"{file} already exists; give the name of a new file")
    text = asyncio.run(volume_credentials(config, arguments.volume))
    try:
        write_private(file, text.encode())
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror}") from None
    print(f"wrote {file}: it gives access to the whole drive; protect it like the files in it")
    return 0
