"""The command line: `boxd serve | doctor | down | images | volumes | backup | restore | openapi`.

The service is imported by the commands that use it: that takes more than a second, and within it
Ctrl-C is to end quietly.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from boxd import log
from boxd.cli import backups, checking, images, serving, volumes
from boxd.cli.flags import DEFAULTS, Flags
from boxd.cli.settings import config_of
from boxd.errors import BadRequest, BoxdError

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell counts it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 refused or failed, 2 usage, 130 Ctrl-C."""
    arguments = parser().parse_args(argv)
    log.setup(verbose=arguments.verbose)
    try:
        config = config_of(arguments)
        status: int = arguments.run(config, arguments)
    except BoxdError as error:
        print(f"boxd: {log.escape(log.redact(str(error)))}", file=sys.stderr)
        return 2 if isinstance(error, BadRequest) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def parser() -> argparse.ArgumentParser:
    """Each command takes the flags that matter to it; the others have their defaults."""
    made = argparse.ArgumentParser(prog="boxd", description="On-demand boxes around /wrk.")
    made.set_defaults(**DEFAULTS)
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    flags = Flags()
    for name, run, parents, text in (
        ("serve", serving.serve, flags.everything, "serve in the foreground; Ctrl-C stops all"),
        ("doctor", checking.doctor, flags.starting, "what this host can and cannot do"),
        ("openapi", checking.openapi, [flags.common], "print the OpenAPI document of the HTTP API"),
        (
            *("down", serving.down, flags.everything),
            "stop what serves, or what a dead daemon left running; takes the flags of serve",
        ),
    ):
        commands.add_parser(name, parents=parents, help=text).set_defaults(run=run)
    for group in (images, volumes, backups):
        group.add(commands, flags)
    return made
