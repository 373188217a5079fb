"""`wrkfs`: commands on one volume, which need only its credential file; and `wrkfs bench`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

from wrkfs.cli import bench, clone, df, dump, fsck, gc, load, locks, snapshot, stat, trash
from wrkfs.cli.commandline import CommandParser
from wrkfs.cli.names import strict
from wrkfs.cli.output import shared
from wrkfs.config import ConfigError, VolumeConfig
from wrkfs.errors import WrkfsError
from wrkfs.unread import quietly

if TYPE_CHECKING:
    import argparse

    from wrkfs.cli.output import Command

COMMANDS: dict[str, Command] = {
    "stat": stat,
    "df": df,
    "fsck": fsck,
    "gc": gc,
    "locks": locks,
    "trash": trash,
    "snapshot": snapshot,
    "clone": clone,
    "dump": dump,
    "load": load,
}


def main() -> int:
    """Entry point. Exit status: 0 success, 1 an error (fsck: findings), 2 a usage error.

    141: the reader of the output has closed it.
    """
    return quietly(_main)


def _main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.command == "bench":
        try:
            return bench.run(arguments)
        except KeyboardInterrupt:
            sys.stderr.write("wrkfs: interrupted\n")
            return 130
    if arguments.credentials is None:
        parser.error(
            f"{arguments.command} needs --credentials FILE, the credential file of the volume "
            "(mode 0600)"
        )
    command = COMMANDS[arguments.command]
    try:
        config = VolumeConfig.from_file(arguments.credentials)
        result = asyncio.run(command.run(config, arguments))
    except (ConfigError, WrkfsError) as error:
        sys.stderr.write(f"wrkfs: {error}\n")
        return fsck.CANNOT if command is fsck else 1
    except KeyboardInterrupt:
        sys.stderr.write("wrkfs: interrupted\n")
        return 130
    if arguments.json:
        result.stream.write(json.dumps(strict(result.data)) + "\n")
    else:
        result.stream.writelines(f"{line}\n" for line in result.lines)
    return result.status


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = CommandParser(
        prog="wrkfs", description="Inspect and maintain one volume, even while it is mounted."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        shared(one)
        command.declare(one)
    bench.declare(commands.add_parser("bench", help=bench.HELP, description=bench.__doc__))
    return parser
