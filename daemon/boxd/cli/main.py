"""The command line: `boxd serve | doctor | down | config | images | volumes | ...`.

Each command imports the service itself: the import takes more than a second, and Ctrl-C must end it
without a traceback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from box_guest.shared.command_line import CommandParser
from box_guest.shared.unread import quietly
from boxd import log
from boxd.cli import backups, checking, configuring, images, sbom, serving, volumes
from boxd.cli.parsers import COMMON, EVERYTHING, STARTING, parent
from boxd.cli.printing import refused
from boxd.cli.settings import config_of
from boxd.version import VERSION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in a shell."""
DOWN_HELP = "stop the service and all its boxes, even after a crash; takes the flags of serve"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the arguments of the process); return the exit status.

    0: success, 1: refused or failed, 2: wrong usage, 130: Ctrl-C, 141: the reader of the output has
    closed it.
    """
    return quietly(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return refused(lambda: _run(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    log.setup(verbose=config.verbose, is_json=config.telemetry.log_format == "json")
    status: int = arguments.run(config, arguments)
    return status


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top: argparse.ArgumentParser = CommandParser(
        prog="boxd", description="Run sandboxes on demand, with a shared drive at /wrk."
    )
    top.add_argument(
        "--version", action="version", version=f"boxd {VERSION}", help="print the version"
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, run, groups, text in (
        ("serve", serving.serve, EVERYTHING, "run the service in the foreground; Ctrl-C stops it"),
        ("doctor", checking.doctor, STARTING, "check what this host supports"),
        ("openapi", checking.openapi, COMMON, "print the OpenAPI document of the HTTP API"),
        ("sbom", sbom.sbom, COMMON, "print what is installed with the service, as CycloneDX JSON"),
        ("down", serving.down, EVERYTHING, DOWN_HELP),
    ):
        commands.add_parser(name, parents=[parent(groups)], help=text).set_defaults(run=run)
    for module in (configuring, images, volumes, backups):
        module.add(commands)
    return top
