"""`wrkfs`: a volume seen from outside, with nothing but its credential file; and `wrkfs bench`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

from wrkfs.cli import bench, df, dump, fsck, gc, load, stat, trash
from wrkfs.cli.output import shared
from wrkfs.config import ConfigError, VolumeConfig
from wrkfs.errors import WrkfsError

if TYPE_CHECKING:
    from wrkfs.cli.output import Command

COMMANDS: dict[str, Command] = {
    "stat": stat,
    "df": df,
    "fsck": fsck,
    "gc": gc,
    "trash": trash,
    "dump": dump,
    "load": load,
}


def main() -> int:
    """Entry point. Exit status: 0 done, 1 an error (fsck: something found), 2 a wrong call."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.command == "bench":
        try:
            return bench.run(arguments)
        except KeyboardInterrupt:
            sys.stderr.write("wrkfs: interrupted\n")
            return 130
    if arguments.credentials is None:
        parser.error(f"{arguments.command} needs --credentials FILE: what a mount gets, mode 0600")
    command = COMMANDS[arguments.command]
    try:
        config = VolumeConfig.from_file(arguments.credentials)
        answer = asyncio.run(command.run(config, arguments))
    except (ConfigError, WrkfsError) as error:
        sys.stderr.write(f"wrkfs: {error}\n")
        return fsck.CANNOT if command is fsck else 1
    except BrokenPipeError:
        sys.stderr.write("wrkfs: nobody reads the output any more\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("wrkfs: interrupted\n")
        return 130
    if arguments.json:
        answer.stream.write(json.dumps(answer.data) + "\n")
    else:
        answer.stream.writelines(f"{line}\n" for line in answer.lines)
    return answer.status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wrkfs", description="A volume seen from outside.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        shared(one)
        command.declare(one)
    bench.declare(commands.add_parser("bench", help=bench.HELP, description=bench.__doc__))
    return parser
