"""The commands `boxd backup` and `boxd restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from boxd.cli.parsers import BACKUPS, parent
from boxd.cli.printing import say, showing
from boxd.names.size import parse_count

if TYPE_CHECKING:
    import argparse

    from boxd.cli.parsers import Commands
    from boxd.config import Config


def add(commands: Commands) -> None:
    """Add both commands."""
    parents = [parent(BACKUPS)]
    text = "write an encrypted archive of the control plane, without drives and disks of boxes"
    backup = commands.add_parser("backup", parents=parents, help=text)
    backup.add_argument("--to", metavar="DIR|s3://BUCKET/PREFIX", help="store the archive here")
    backup.add_argument(
        "--keep", metavar="N", help="then keep the newest N archives (default: all)"
    )
    backup.add_argument("--new-key", type=Path, metavar="FILE", help="only create a new key file")
    backup.set_defaults(run=_backup)
    text = "create a state directory from an archive"
    restore = commands.add_parser("restore", parents=parents, help=text)
    restore.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="PLACE",
        help="restore the newest archive in this place (as in --to), or this archive",
    )
    restore.add_argument(
        "--keep-database",
        action="store_true",
        help="leave the database of --meta-dsn-file as it is; restore only the keys",
    )
    restore.set_defaults(run=_restore)


def _backup(config: Config, arguments: argparse.Namespace) -> int:
    from boxd.cli import archives

    keep = None if arguments.keep is None else parse_count(arguments.keep, "--keep")
    return archives.backup(config, arguments.to, keep, arguments.new_key)


def _restore(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from rich.console import Console

    from boxd.cli import archives

    console = Console(stderr=True)
    with showing(console) as progress:
        lines = asyncio.run(
            archives.restore(
                config, arguments.source, progress, keep_database=arguments.keep_database
            )
        )
    for line in lines:
        say(console, line)
    return 0
