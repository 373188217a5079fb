"""`boxd backup` and `boxd restore`: their flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from boxd.cli.flags import count
from boxd.cli.printing import say, showing

if TYPE_CHECKING:
    import argparse

    from boxd.cli.flags import Commands, Flags
    from boxd.config import Config


def add(commands: Commands, flags: Flags) -> None:
    """Both commands."""
    parents = [flags.common, flags.servers, flags.backups]
    text = (
        "write the control plane, encrypted, into an archive; /wrk and boxes' disks are not in it"
    )
    backup = commands.add_parser("backup", parents=parents, help=text)
    backup.add_argument("--to", metavar="DIR|s3://BUCKET/PREFIX", help="where archives are kept")
    backup.add_argument("--keep", type=count, metavar="N", help="remove older ones; default: none")
    backup.add_argument("--new-key", type=Path, metavar="FILE", help="only make a key file")
    backup.set_defaults(run=_backup)
    text = "make a fresh state directory from an archive"
    restore = commands.add_parser("restore", parents=parents, help=text)
    restore.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="PLACE",
        help="as --to, or one archive in it",
    )
    restore.add_argument(
        "--keep-database", action="store_true", help="--meta-dsn-file has the rows: restore keys"
    )
    restore.set_defaults(run=_restore)


def _backup(config: Config, arguments: argparse.Namespace) -> int:
    from boxd.cli import archives

    return archives.backup(config, arguments.to, arguments.keep, arguments.new_key)


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
